"""Draft models and heads through the offline API: tokens, log-probabilities and counts, beside the same model without them."""

import json
import shutil
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxserve.errors import CheckpointError, ConfigError
from jaxserve.llm import LLM
from jaxserve.sampling.params import SamplingParams
from tests.support.plain_llama import random_head, random_llama
from tests.support.tiny_checkpoint import write_tiny_checkpoint

PROMPTS = ["a tale of two cities", "one", "the best of times, the worst of times", "xyz" * 12]
SHAPES: dict[str, Any] = {
    "max_model_len": 128,
    "max_num_seqs": 4,
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


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model, another of its vocabulary, and an EAGLE-3 head for it."""
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
    return target, other, head


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
def expected(models):
    return outputs(LLM(str(models[0]), **SHAPES))


@pytest.mark.parametrize(
    ("place", "method"), [(0, "draft_model"), (1, "draft_model"), (2, "eagle3")], ids=["same", "other", "head"]
)
def test_outputs_are_those_without(models, expected, place, method):
    speculative = {"method": method, "model": str(models[place]), "num_speculative_tokens": 3}
    llm = LLM(str(models[0]), speculative_config=speculative, late_compiles="raise", **SHAPES)
    assert outputs(llm) == expected
    assert outputs(llm) == expected, "behind prefix hits"
    guessed, right = drafted(llm)
    assert guessed > 0
    assert right > 0.98 * guessed if place == 0 else right < guessed
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
