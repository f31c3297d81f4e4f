"""Tokens and log-probabilities under other settings of jax, set before the start, between two calls or in the caller's thread."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType
from safetensors.numpy import load_file

from jaxserve import LLM, SamplingParams
from jaxserve.engine import preparation
from jaxserve.errors import ConfigError
from jaxserve.rollout.policy import seeds_of
from tests.golden.reading import read_golden
from tests.support.other_settings import other_values, process_settings
from tests.support.rollouts import PROMPTS, from_disk

PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=4, logprobs=2, ignore_eos=True),
    SamplingParams(seed=7, top_k=20, top_p=0.9, repetition_penalty=1.1, max_tokens=4, logprobs=1, ignore_eos=True),
]


@pytest.fixture(scope="module")
def directory() -> Path:
    return read_golden("llama-tied").directory


@pytest.fixture(scope="module")
def llm(directory: Path) -> LLM:
    return from_disk(directory)


def answers(llm: LLM, **more: Any) -> list[tuple[list[int], float | None]]:
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False, **more)
    return [(one.outputs[0].token_ids, one.outputs[0].cumulative_logprob) for one in outputs]


def test_settings_that_change_between_two_calls(llm: LLM) -> None:
    """Nothing is compiled again either: `late_compiles` is "raise"."""
    expected, wrong = answers(llm), []
    for name, value in other_values().items():
        with process_settings({name: value}):
            if answers(llm) != expected:
                wrong.append(name)
    assert not wrong


def test_settings_from_before_the_start(llm: LLM, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once. Programs are traced; weights are loaded, put to sleep, taken back and replaced."""
    monkeypatch.setattr(preparation, "kept_directory", lambda: None)
    expected = answers(llm)
    told: list[bool] = []

    def progress(what: str, done: int, total: int) -> None:
        told.append(jax.config.values["jax_enable_x64"])

    with process_settings(other_values()):
        started = from_disk(directory, progress=progress, recheck_weights_minutes=60)
        assert answers(started) == expected
        started.sleep()
        started.wake_up()
        assert answers(started) == expected
        started.update_weights_from_disk(directory)
        assert answers(started) == expected
    assert set(told) == {True}, "a callback has the settings of the program"


def test_contexts_of_the_callers_thread(llm: LLM, directory: Path) -> None:
    expected = answers(llm)
    given = {name: jnp.asarray(tensor) for name, tensor in load_file(directory / "model.safetensors").items()}
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    told: list[bool] = []
    with ExitStack() as contexts:
        for context in (jax.enable_x64(True), jax.transfer_guard("disallow"), jax.set_mesh(mesh), jax.disable_jit()):
            contexts.enter_context(context)
        assert answers(llm, on_output=lambda _: told.append(jax.config.values["jax_enable_x64"])) == expected
        llm.update_weights(given)
        assert answers(llm) == expected
    assert told == [True] * len(PROMPTS), "a callback has the settings of the thread"


def test_a_setting_that_would_end_the_process_is_refused_by_name(directory: Path) -> None:
    name = "jax_array_garbage_collection_guard"
    with process_settings({name: "fatal"}), pytest.raises(ConfigError, match=f"{name}=fatal is not supported.*unset it"):
        from_disk(directory)


def test_a_key_of_jax_gives_the_same_seeds_under_a_transfer_guard() -> None:
    key = jax.random.key(3)
    expected = seeds_of(key, 2)
    with jax.transfer_guard("disallow_explicit"), jax.enable_x64(True):
        assert seeds_of(key, 2) == expected
