"""What trainers' adapters have in common, over a real engine and a plain tokenizer; no trainer's package is needed."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.errors import ConfigError, InvalidRequestError
from jaxserve.llm import LLM
from jaxserve.models.binding import bind
from jaxserve.models.dense_attention import dense_attend
from jaxserve.rollout.agreement import TrainerForward, require_agreement
from jaxserve.rollout.forward import layer_inputs
from jaxserve.rollout.policy import RolloutPolicy, seeds_of, truncation
from jaxserve.rollout.sequences import rollout, score
from jaxserve.sampling.params import SamplingParams
from tests.support.tiny_checkpoint import write_tiny_checkpoint

BOS, EOS, PAD = 3, 1, 2
PARAMS = SamplingParams(max_tokens=8, temperature=0.7)


class Letters:
    """A tokenizer of the trainer's kind."""

    def encode(self, text):
        return [ord(letter) for letter in text]

    def decode(self, ids):
        return "".join(map(chr, ids))

    def bos_id(self):
        return BOS

    def eos_id(self):
        return EOS

    def pad_id(self):
        return PAD


class WithoutBegin(Letters):
    def bos_id(self):
        return None


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    directory = write_tiny_checkpoint(tmp_path_factory.mktemp("policy") / "model")
    shapes: dict[str, Any] = {
        "max_model_len": 64,
        "max_num_seqs": 4,
        "before_ready": "fewest",
        "max_num_batched_tokens": 16,
        "page_size": 4,
    }
    return LLM(str(directory), load_format="dummy", dtype="float32", **shapes)


@pytest.fixture
def policy(llm):
    return RolloutPolicy(llm, Letters())


def test_rollouts_have_a_logprob_a_token_and_memory_of_nothing_else(llm):
    told = {}
    prompts = [[5, 6, 7], [9], [40, 41]]
    params = SamplingParams(n=2, max_tokens=6, temperature=0.7, seed=3, ignore_eos=True)
    found = rollout(llm, prompts, params, on_rollouts=lambda number, ended: told.update({number: ended}))
    assert [told[number] for number in range(3)] == found
    for prompt, several in zip(prompts, found, strict=True):
        assert [one.prompt_token_ids for one in several] == [prompt] * 2
        for one in several:
            assert one.logprobs.dtype == np.float32
            assert one.logprobs.shape == (len(one.token_ids),) == (6,)
            assert (one.logprobs < 0).all()
            again = rollout(llm, [prompt], SamplingParams(max_tokens=6, temperature=0.7, seed=one.seed, ignore_eos=True))[0][0]
            assert again.token_ids == one.token_ids


def test_scores_are_the_raw_logprobs_of_the_samples(llm):
    params = SamplingParams(max_tokens=6, temperature=0.7, seed=3, ignore_eos=True, logprobs_mode="raw_logprobs")
    found = [several[0] for several in rollout(llm, [[5, 6, 7], [9]], params)]
    scored = score(llm, [(one.prompt_token_ids, one.token_ids) for one in found] + [([5], [])])
    assert scored[-1].shape == (0,)
    for one, scores in zip(found, scored[:-1], strict=True):
        np.testing.assert_allclose(scores, one.logprobs, atol=1e-4)


def test_as_many_params_as_prompts(llm):
    with pytest.raises(InvalidRequestError, match="1 params for 2 prompts"):
        rollout(llm, [[5], [6]], [PARAMS])


def test_samples_follow_from_seed_and_prompt(policy):
    first = policy.sample(["abc", "abc", "x"], PARAMS, seed=5)
    assert [one.token_ids for one in first] == [one.token_ids for one in policy.sample(["abc", "abc", "x"], PARAMS, seed=5)]
    assert first[0].token_ids != first[1].token_ids  # of one prompt: a group
    assert first[0].prompt_token_ids == [BOS, *map(ord, "abc")]
    key = jax.random.key(5)
    assert seeds_of(key, 3) == seeds_of(jax.random.key_data(key), 3) != seeds_of(jax.random.key(6), 3)
    assert len(set(seeds_of(5, 1000))) == 1000
    assert seeds_of(None, 2) == [None, None]


def test_sequences_end_with_the_token_that_ended_them(policy):
    free = policy.sample(["abc"], PARAMS, seed=5)[0]
    stop = free.token_ids[2]
    ended = policy.sample(["abc"], PARAMS, eos_tokens=[stop], seed=5)[0]
    assert ended.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert ended.finish_reason == "stop"


def test_padding_is_not_scored(policy):
    prompts = np.array([[PAD, PAD, 5, 6], [7, 8, 9, 10], [PAD, 5, PAD, 6]])
    completions = np.array([[11, 12, EOS, PAD, PAD], [13, 14, 15, 16, 17], [11, PAD, PAD, PAD, PAD]])
    logprobs = policy.token_logprobs(prompts, completions)
    wanted = score(policy.llm, [([5, 6], [11, 12, EOS]), ([7, 8, 9, 10], [13, 14, 15, 16, 17]), ([5, PAD, 6], [11])])
    for row, scores in zip(logprobs, wanted, strict=True):
        np.testing.assert_array_equal(row[: len(scores)], scores)
        assert not row[len(scores) :].any()
    with pytest.raises(InvalidRequestError, match="padding"):
        policy.token_logprobs([[PAD, PAD]], [[5, 6]])


def test_a_token_that_ends_may_be_what_pads(policy, monkeypatch):
    monkeypatch.setattr(Letters, "pad_id", lambda self: EOS)
    scores = policy.token_logprobs([[EOS, 5, 6]], [[11, EOS, EOS, EOS]])[0]
    assert [bool(each) for each in scores] == [True, True, False, False]


def test_prompts_are_padded_on_the_left(policy):
    found = policy.sample(["ab", "abcd"], PARAMS, seed=1)
    assert policy.left_padded(found, 6).tolist() == [
        [PAD, PAD, PAD, BOS, ord("a"), ord("b")],
        [PAD, BOS, *map(ord, "abcd")],
    ]
    assert policy.left_padded(found, 3).shape == (2, 8)


def test_prompts_begin_once(llm):
    assert RolloutPolicy(llm, Letters()).encode("\x03a") == [BOS, ord("a")]
    assert RolloutPolicy(llm, WithoutBegin()).encode("a") == [ord("a")]


def test_truncation_in_tunix_words():
    assert truncation(None, None) == {"top_p": 1.0, "top_k": 0}
    assert truncation(0.5, -1) == {"top_p": 0.5, "top_k": -1}


def trainer(config, params):
    """The forward pass of a trainer whose model has this configuration and these weights."""

    def logits(params, tokens):
        decoder = bind(config, params)
        return decoder.logits(decoder.hidden(tokens, jnp.arange(tokens.shape[0]), dense_attend))[:, : config.vocab_size]

    return lambda tokens: TrainerForward(
        np.asarray(jax.jit(logits)(params, tokens)), layer_inputs(config, params, tokens), "float32"
    )


def test_a_trainer_with_the_same_model_is_accepted(llm):
    assert require_agreement(llm, trainer(*llm.decoder)) < 1e-4


def turned_otherwise(config, params):
    return replace(config, ropes=tuple(replace(rope, theta=2.0) for rope in config.ropes)), params


def with_another_mlp(config, params):
    layers = params["layers"]
    mlp = jax.tree.map(lambda weight: 3 * weight, layers["1"]["mlp"])
    return config, {**params, "layers": {**layers, "1": {**layers["1"], "mlp": mlp}}}


def with_another_embedding(config, params):
    return config, {**params, "embedding": jax.tree.map(lambda weight: 3 * weight, params["embedding"])}


@pytest.mark.parametrize(
    ("changed", "where"),
    [(turned_otherwise, "layer 0"), (with_another_mlp, "layer 1"), (with_another_embedding, "the embedding")],
)
def test_a_trainer_with_another_is_told_where_it_begins(llm, changed, where):
    with pytest.raises(ConfigError, match=f"do not compute the same: .* at most.* in {where},"):
        require_agreement(llm, trainer(*changed(*llm.decoder)), limit=1e-5)


def test_numbers_that_are_none_are_no_agreement(llm):
    def forward(tokens, vocab_size=llm.report.model.vocab_size):
        return TrainerForward(np.full((len(tokens), vocab_size), np.nan, np.float32), None, "float32")

    with pytest.raises(ConfigError, match="does not tell what goes into its layers"):
        require_agreement(llm, forward, limit=math.inf)
    with pytest.raises(ConfigError, match="has 100 tokens, the engine's 260"):
        require_agreement(llm, partial(forward, vocab_size=100))
