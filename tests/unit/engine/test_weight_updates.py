"""Weights from a program, and their updates between two steps, against fresh engines with the same weights."""

from __future__ import annotations

import pytest

from jaxserve import LLM, SamplingParams
from jaxserve.engine.events import WeightRange
from tests.support.families import hf_config
from tests.support.live import on_devices, write_checkpoint
from tests.support.rollouts import PROMPTS, engine, from_disk, weights

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def tokens(llm: LLM) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]


@pytest.fixture(scope="module")
def oracle() -> dict[int, list[list[int]]]:
    """What fresh engines say, by the seed of their weights."""
    return {seed: tokens(engine("qwen3", seed)) for seed in (1, 2)}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return engine("qwen3", 1)


@pytest.fixture
def first(llm: LLM) -> LLM:
    """An engine with the weights of seed 1."""
    llm.update_weights(on_devices(weights("qwen3", 1)), "one", force=True)
    return llm


def test_from_params_says_what_loading_says(tmp_path, oracle):
    directory = write_checkpoint(tmp_path, hf_config("qwen3"), weights("qwen3", 1))
    assert tokens(from_disk(directory)) == oracle[1]
    assert oracle[1] != oracle[2]


def test_update_between_calls(first, oracle):
    assert tokens(first) == oracle[1]
    assert first.update_weights(on_devices(weights("qwen3", 2)), 7) == 7
    outputs = first.generate(PROMPTS, GREEDY)
    assert [output.outputs[0].token_ids for output in outputs] == oracle[2]
    assert all(output.num_cached_tokens == 0 for output in outputs)
    assert [output.outputs[0].weight_versions for output in outputs] == [[WeightRange(7, 0, 12)]] * 2
    assert first.update_weights(on_devices(weights("qwen3", 1))) == first.weight_version == 8


def test_the_given_arrays_stay_the_trainers(first, oracle):
    given = on_devices(weights("qwen3", 2))
    first.update_weights(given, "two")
    for array in given.values():
        array.delete()
    assert tokens(first) == oracle[2]
