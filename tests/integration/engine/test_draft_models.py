"""Draft models and heads through the offline API: tokens, log-probabilities and counts, beside the same model without them."""

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxserve.engine.calls import AnyCall, FinishUpdate, OpenTransfer, PutPiece, StartUpdate, run_call
from jaxserve.errors import CheckpointError, ConfigError, ConflictError, InvalidRequestError
from jaxserve.llm import LLM
from jaxserve.sampling.params import SamplingParams
from jaxserve.speculation.costs import DraftCosts
from jaxserve.weights.live.pieces import pieces_of
from tests.support.plain_llama import random_head, random_llama
from tests.support.tiny_checkpoint import write_tiny_checkpoint

PROMPTS = ["a tale of two cities", "one", "the best of times, the worst of times", "xyz" * 12]
SHAPES: dict[str, Any] = {
    "max_model_len": 128,
    "max_num_seqs": 4,
    "before_ready": "fewest",
    "max_num_batched_tokens": 16,
    "page_size": 4,
    "num_pages": 90,
    "dtype": "float32",
}
PARAMS = [
    SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True),
    SamplingParams(max_tokens=40, temperature=1.0, seed=5, ignore_eos=True, logprobs=2),
    SamplingParams(max_tokens=30, temperature=0.8, seed=6, top_k=8, n=2, ignore_eos=True),
    SamplingParams(max_tokens=30, temperature=0.0, frequency_penalty=0.5, ignore_eos=True),
]


SAME, OTHER, HEAD, SECOND_HEAD = range(4)


@pytest.fixture(autouse=True, scope="module")
def alike():
    """All steps are taken to cost the same: drafts that do not pay on the machine of the day are verified too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(DraftCosts, "seconds", lambda costs, rows, tokens: 1.0)
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model, another of its vocabulary, and two EAGLE-3 heads for it."""
    path, rng = tmp_path_factory.mktemp("drafts"), np.random.default_rng(1)
    target = write_tiny_checkpoint(path / "target")
    config = json.loads((target / "config.json").read_text())
    save_file(random_llama(rng, config), target / "model.safetensors")
    other = write_tiny_checkpoint(path / "other")
    save_file(random_llama(rng, config), other / "model.safetensors")
    head = path / "head"
    head.mkdir()
    taps, count = [0, 1], config["vocab_size"]
    aux = {"eagle_aux_hidden_state_layer_ids": taps}
    head_config = {**config, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": count, "eagle_config": aux}
    (head / "config.json").write_text(json.dumps(head_config))
    save_file(random_head(rng, config, len(taps), count), head / "model.safetensors")
    second = path / "second head"
    second.mkdir()
    shutil.copy(head / "config.json", second)
    save_file(random_head(rng, config, len(taps), count), second / "model.safetensors")
    return target, other, head, second


def outputs(llm: LLM) -> list[Any]:
    """Tokens of every sequence, why it ended, and its log-probabilities, which steps of other shapes round otherwise."""
    answers = llm.generate(PROMPTS, PARAMS)
    return [
        (
            one.token_ids,
            one.finish_reason,
            None if one.cumulative_logprob is None else pytest.approx(one.cumulative_logprob, abs=1e-3),
        )
        for answer in answers
        for one in answer.outputs
    ]


def drafted(llm: LLM) -> tuple[int, int]:
    counts = llm._built.core.scheduler.counts()
    return counts.spec_decode_num_draft_tokens, counts.spec_decode_num_accepted_tokens


@pytest.fixture(scope="module")
def plain(models):
    """The model without drafts."""
    return LLM(str(models[SAME]), **SHAPES)


@pytest.fixture(scope="module")
def expected(plain):
    return outputs(plain)


@pytest.fixture(scope="module")
def speculating(models):
    """The model with the draft at a place: one engine of each, whose draft every test leaves as it was."""

    @cache
    def built(place: int) -> LLM:
        method = "eagle3" if place in (HEAD, SECOND_HEAD) else "draft_model"
        speculative = {"method": method, "model": str(models[place]), "num_speculative_tokens": 3}
        return LLM(str(models[SAME]), speculative_config=speculative, late_compiles="raise", **SHAPES)

    return built


@pytest.mark.parametrize("place", [SAME, OTHER, HEAD], ids=["same", "other", "head"])
def test_outputs_are_those_without(speculating, expected, place):
    llm = speculating(place)
    llm.reset_prefix_cache()
    before = drafted(llm)
    assert outputs(llm) == expected
    assert outputs(llm) == expected, "behind prefix hits"
    guessed, right = (now - then for now, then in zip(drafted(llm), before, strict=True))
    assert guessed > 0
    assert right > 0.98 * guessed if place == SAME else right < guessed
    llm._built.core.scheduler.check()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "/nowhere"}, "no checkpoint directory at '/nowhere'"),
        ({"method": "eagle3"}, "is a model of its own, not an EAGLE-3 head"),
        ({"method": "ngram"}, "model must not be given with the method 'ngram'"),
        ({"quantization": "fp8"}, "quantization is not taken"),
    ],
)
def test_what_cannot_be_is_named(models, change, words):
    speculative = {"model": str(models[1]), "num_speculative_tokens": 3, **change}
    with pytest.raises(ConfigError, match=words):
        LLM(str(models[0]), speculative_config=speculative, **SHAPES)


def test_a_draft_with_other_tokens_is_refused(models, tmp_path):
    other = shutil.copytree(models[1], tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    letters = tokenizer["model"]["vocab"]
    letters["a"], letters["b"] = letters["b"], letters["a"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(CheckpointError, match="is b'b' to the draft and b'a' to the target, and 1 more differ"):
        LLM(str(models[0]), speculative_config={"model": str(other), "num_speculative_tokens": 2}, **SHAPES)


def ask(llm: LLM, call: AnyCall) -> Any:
    return run_call(llm._built.core, call)


def announce(llm: LLM, tensors: dict[str, Any]) -> None:
    arrays = [str(one.dtype) for one in tensors.values()], [list(one.shape) for one in tensors.values()]
    ask(llm, OpenTransfer())
    ask(llm, StartUpdate("u", list(tensors), *arrays, draft=True))


def send_draft(llm: LLM, directory: Path) -> None:
    """Give the engine a checkpoint's tensors, as another process would."""
    tensors = {name: one for name, one in load_file(directory / "model.safetensors").items() if one.dtype == np.float32}
    announce(llm, tensors)
    for piece in pieces_of(tensors.items(), 100_000):
        ask(llm, PutPiece("u", piece)).work()
    finish = ask(llm, FinishUpdate("u", mode="keep"))
    finish.then(finish.work()).result()


def held(llm: LLM) -> list[Any]:
    executor: Any = llm._built.core.executor
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(executor.draft_weights.tree)]


@pytest.mark.parametrize(("first", "then"), [(OTHER, SAME), (HEAD, SECOND_HEAD)], ids=["model", "head"])
def test_a_draft_that_is_updated_is_one_that_was_loaded(models, speculating, expected, first, then):
    """Updated to another, and back to the one that the engine has loaded itself."""
    llm = speculating(first)
    llm.reset_prefix_cache()
    loaded, start = held(llm), drafted(llm)
    assert outputs(llm) == expected
    before = [now - then for now, then in zip(drafted(llm), start, strict=True)]
    send_draft(llm, models[then])
    assert held(llm) != loaded
    if then == SAME:
        assert held(llm) == held(speculating(SAME))
    assert outputs(llm) == expected, "behind prefixes that the draft has cached by its old weights"
    llm.reset_prefix_cache()
    updated = drafted(llm)
    assert outputs(llm) == expected
    guessed, right = (now - then for now, then in zip(drafted(llm), updated, strict=True))
    if then == SAME:  # the target itself
        assert before[1] < 0.5 * before[0]
        assert right > 0.98 * guessed > 0
    send_draft(llm, models[first])
    assert held(llm) == loaded
    assert llm.weight_version is None
    llm._built.core.scheduler.check()


def test_what_is_no_update_of_a_draft(models, plain, speculating):
    tensors = load_file(models[OTHER] / "model.safetensors")
    with pytest.raises(ConflictError, match="no draft model"):
        announce(plain, tensors)
    llm = speculating(OTHER)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight"):
        announce(llm, {name: one for name, one in tensors.items() if name != "model.norm.weight"})
    announce(llm, tensors)
    with pytest.raises(InvalidRequestError, match="version is of the target's weights"):
        ask(llm, FinishUpdate("u", 3))
    with pytest.raises(ConflictError, match="did not come"):
        ask(llm, FinishUpdate("u")).work()
