"""Embeddings from the offline API, alone and in the steps of requests that generate."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve import LLM, PoolingParams, SamplingParams
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.outputs import RequestOutputs
from jaxserve.engine.preparation import prepare
from jaxserve.errors import ContextLengthError, InvalidRequestError
from jaxserve.models.binding import Params, bind
from jaxserve.models.dense_attention import dense_attend
from jaxserve.offline import Collected, TextRequest, drive
from jaxserve.offline_pooling import prepare_pooled
from jaxserve.step.tasks import POOLED, TOKEN_VECTORS
from jaxserve.types import RequestOptions

SIZES: dict[str, Any] = {
    "max_num_seqs": 4,
    "before_ready": "fewest",
    "max_num_batched_tokens": 32,
    "max_model_len": 256,
    "dtype": "float32",
}
LONG = tuple(range(20, 120))  # four chunks


@pytest.fixture(scope="module")
def llm():
    return LLM("pico", convert="embed", **SIZES)


@pytest.fixture(scope="module")
def hidden(llm):
    """Of LONG, by the decoder itself."""
    executor = llm._built.core.executor

    @jax.jit
    def of_all(params: Params) -> jax.Array:
        decoder = bind(executor._layout.config, params)
        return decoder.hidden(jnp.array(LONG), jnp.arange(len(LONG)), dense_attend)

    return np.asarray(of_all(executor.weights.tree), np.float32)


def pooled(llm, ids=LONG, **params):
    (output,) = llm.encode([{"prompt_token_ids": list(ids)}], PoolingParams(**params), use_tqdm=False)
    assert output.error is None
    return output


def test_pooled_vectors_are_those_of_the_decoder(llm, hidden):
    wanted = {"last": hidden[-1], "first": hidden[0], "mean": hidden.mean(0)}
    for pooling, vector in wanted.items():
        plain = pooled(llm, pooling=pooling, use_activation=False).outputs.data
        np.testing.assert_allclose(plain, vector, rtol=2e-4, atol=2e-4)
        unit = pooled(llm, pooling=pooling).outputs.data
        np.testing.assert_allclose(unit, vector / np.linalg.norm(vector), rtol=2e-4, atol=2e-5)
    every = pooled(llm, task="token_embed", use_activation=False).outputs.data
    np.testing.assert_allclose(every, hidden, rtol=2e-4, atol=2e-4)


def test_a_prefix_is_found_where_the_last_token_alone_is_read(llm, hidden):
    llm.reset_prefix_cache()
    assert pooled(llm).num_cached_tokens == 0
    again = pooled(llm, use_activation=False)
    assert again.num_cached_tokens == 96
    np.testing.assert_allclose(again.outputs.data, hidden[-1], rtol=2e-4, atol=2e-4)
    assert pooled(llm, pooling="mean").num_cached_tokens == 0
    assert pooled(llm, task="token_embed").num_cached_tokens == 0


def test_it_shares_steps_with_requests_that_generate_and_changes_none(llm):
    """Six texts and six embeddings in four slots, with prompts of several chunks."""
    built, params = llm._built, SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    prompts: list[Any] = [{"prompt_token_ids": list(range(30 + 7 * i, 75 + 11 * i))} for i in range(6)]
    alone = llm.generate(prompts, params, use_tqdm=False)
    vectors = [one.outputs.data for one in llm.encode(prompts, PoolingParams(pooling="mean"), use_tqdm=False)]
    llm.reset_prefix_cache()
    options = RequestOptions()
    texts: list[Any] = []
    for index, prompt in enumerate(prompts):
        requests = built.intake.prepare(prompt, params, f"text{index}", built.clock.now(), options)
        outputs = RequestOutputs(f"text{index}", requests, built.tokenizer, built.clock)
        texts.append(TextRequest(prompt, params, requests, outputs, [Collected()]))
    mixed: list[Any] = prepare_pooled(built, prompts, [PoolingParams(pooling="mean")] * 6, [options] * 6)
    drive(built, llm._turns, [one for pair in zip(texts, mixed, strict=True) for one in pair], use_tqdm=False)
    assert [one.output.outputs[0].token_ids for one in texts] == [one.outputs[0].token_ids for one in alone]
    for one, vector in zip(mixed, vectors, strict=True):
        np.testing.assert_allclose(one.output.outputs.data, vector, atol=2e-6)
    built.core.scheduler.check()
    assert built.core.scheduler.num_running == 0
    assert built.core.scheduler.cache.num_free == built.core.scheduler.cache.num_usable, "all pages are given back"


def test_scores_of_an_embedder_are_cosines(llm):
    same, other = llm.score("17 + 25", ["17 + 25", "hello"], use_tqdm=False)
    assert same.outputs.score == pytest.approx(1.0, abs=1e-5)
    first, second = (np.array(one.outputs.embedding) for one in llm.embed(["17 + 25", "hello"], use_tqdm=False))
    assert other.outputs.score == pytest.approx(float(first @ second), abs=1e-5)


def test_a_text_is_cut_at_its_end(llm):
    ids = llm.tokenizer.encode("one two three four five")
    cut = llm.embed("one two three four five", truncate_prompt_tokens=4, use_tqdm=False)[0]
    assert cut.prompt_token_ids == ids[:4]
    whole = llm.embed("one two three four five " * 200, truncate_prompt_tokens=-1, use_tqdm=False)[0]
    assert len(whole.prompt_token_ids) == SIZES["max_model_len"]


@pytest.mark.parametrize(
    ("ask", "error", "param", "words"),
    [
        (lambda llm: llm.embed(""), InvalidRequestError, "prompt", "must not be empty"),
        (lambda llm: pooled(llm, range(257)), ContextLengthError, "prompt", "maximum context length is 256"),
        (lambda llm: pooled(llm, dimensions=64), InvalidRequestError, "dimensions", "no matryoshka_dimensions"),
        (lambda llm: pooled(llm, dimensions=0), InvalidRequestError, "dimensions", "at least 1, got 0"),
        (lambda llm: pooled(llm, task="classify", dimensions=2), InvalidRequestError, "dimensions", "the task is classify"),
        (lambda llm: pooled(llm, task="classify"), InvalidRequestError, "task", "served for embed, token_embed"),
        (lambda llm: pooled(llm, task="rank"), InvalidRequestError, "task", "one of embed"),
        (lambda llm: pooled(llm, pooling="max"), InvalidRequestError, "pooling", "one of last, first, mean"),
        (lambda llm: llm.embed("a", prompt_name="query"), InvalidRequestError, "prompt_name", "not declared"),
        (
            lambda llm: llm.embed("a", truncate_prompt_tokens=0),
            InvalidRequestError,
            "truncate_prompt_tokens",
            "between 1 and 256",
        ),
        (lambda llm: llm.score(["a", "b"], ["c", "d", "e"]), InvalidRequestError, "data_1", "2 texts, and data_2 3"),
    ],
)
def test_what_cannot_be_pooled_is_refused_by_name(llm, ask, error, param, words):
    with pytest.raises(error, match=words) as caught:
        ask(llm)
    assert caught.value.param == param


def test_a_model_that_only_pools_generates_nothing():
    llm: Any = LLM("pico", runner="pooling", **SIZES)
    assert len(llm.embed("hello", use_tqdm=False)[0].outputs.embedding) == 256
    with pytest.raises(InvalidRequestError, match="served to pool, not to generate text"):
        llm.generate("hello")


def test_a_model_that_only_generates_has_no_program_for_it():
    names = []
    for settings in ({}, {"convert": "embed"}):
        lowering = prepare(EngineConfig.from_settings({"model": "pico", **SIZES, **settings})).lowering
        names.append({spec.name for spec in lowering.others()})
    assert names[1] - names[0] == {POOLED, TOKEN_VECTORS}
