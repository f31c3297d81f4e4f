"""Calls that stop an engine, replace its weights and let it sleep, as its thread answers them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

from jaxserve.engine.calls import (
    AbortAll,
    AbortRequests,
    EngineAnswer,
    Info,
    NameWeights,
    PauseEngine,
    Resume,
    SleepEngine,
    UpdateFromDisk,
    WakeUp,
    answer_type,
    run_call,
)
from jaxserve.engine.control import WeightInfo
from jaxserve.engine.loop import Refusal
from jaxserve.engine.remote.codec import decoder, encode
from jaxserve.engine.remote.messages import Answer, decode_from_engine
from jaxserve.errors import CheckpointError, InvalidRequestError
from jaxserve.types import FinishReason
from tests.support.driven import PATIENCE, Driven
from tests.support.families import hf_config
from tests.support.live import on_devices, write_checkpoint
from tests.support.rollouts import weights


@pytest.fixture(scope="module")
def driven() -> Iterator[Driven]:
    made = Driven()
    yield made
    made.loop.stop()


@pytest.fixture
def ready(driven: Driven, tmp_path: Any) -> Driven:
    driven.call(WakeUp())
    driven.call(Resume())
    directory = write_checkpoint(tmp_path / "one", hf_config("qwen3"), weights("qwen3", 1))
    driven.call(UpdateFromDisk(str(directory), "one", "abort", True))
    return driven


def test_a_paused_engine_holds_what_comes(ready):
    assert ready.call(PauseEngine()).is_paused
    ready.add(4)
    info: WeightInfo = ready.call(Info())
    assert (info.version, info.is_paused, info.asleep) == ("one", True, None)
    assert ready.said.empty()
    assert not ready.call(Resume()).is_paused
    updates = ready.finish()
    assert [update.weights for update in updates] == ["one"] * 4
    assert updates[-1].finish_reason is FinishReason.LENGTH


def test_a_pause_holds_what_waits_for_the_end_of_what_runs_and_nobody_spins(ready):
    ready.add(30)
    assert ready.said.get(timeout=PATIENCE).token is not None
    waits = ready.loop.call(partial(run_call, call=PauseEngine("wait")))
    ready.call(PauseEngine("keep"))
    assert not waits.done()
    assert not ready.loop.call(lambda core: core.has_work).result(PATIENCE)
    ready.call(Resume())
    assert waits.result(PATIENCE).is_paused
    ready.finish()


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
def test_pausing_what_runs(ready, mode):
    ready.add(200 if mode != "wait" else 20)
    first = ready.said.get(timeout=PATIENCE)
    assert first.token is not None
    ready.call(PauseEngine(mode))
    if mode == "keep":
        seen = ready.said.qsize()
        assert ready.call(Info()).is_paused
        assert ready.said.qsize() <= seen + 1  # the step that was in flight
        ready.call(AbortAll())
    updates = ready.finish()
    expected = FinishReason.LENGTH if mode == "wait" else FinishReason.ABORT
    assert updates[-1].finish_reason is expected
    ready.call(Resume())


def test_requests_are_aborted_by_name_and_no_others(ready):
    ready.add(200)
    assert ready.said.get(timeout=PATIENCE).token is not None
    ready.call(AbortRequests(["other", "r/0", ""]))
    assert ready.said.get(timeout=PATIENCE).finish_reason is None
    ready.call(AbortRequests(["other", "r"]))
    *tokens, last = ready.finish()
    assert all(update.token is not None for update in tokens)
    assert (last.token, last.finish_reason) == (None, FinishReason.ABORT)
    ready.call(PauseEngine("keep"))
    ready.add(200)  # waits
    ready.call(AbortRequests(["r"]))
    assert ready.finish()[-1].finish_reason is FinishReason.ABORT
    ready.call(Resume())


def test_an_update_that_waits_is_answered_when_it_is_made(ready, tmp_path):
    directory = write_checkpoint(tmp_path / "two", hf_config("qwen3"), weights("qwen3", 2))
    ready.add(20)
    first = ready.said.get(timeout=PATIENCE)
    info = ready.call(UpdateFromDisk(str(directory), "two", "wait"))
    assert info.version == "two"
    assert [update.weights for update in (first, *ready.finish())] == ["one"] * 20
    ready.add(2)
    assert [update.weights for update in ready.finish()] == ["two"] * 2


def test_what_is_refused(ready, tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint directory"):
        ready.call(UpdateFromDisk(str(tmp_path / "none")))
    with pytest.raises(InvalidRequestError, match="level must be"):
        ready.call(SleepEngine(5))
    with pytest.raises(InvalidRequestError, match="tags must be"):
        ready.call(WakeUp(("all",)))
    with pytest.raises(msgspec.ValidationError):
        ready.call(PauseEngine("later"))  # type: ignore[arg-type]  # what is wrong


def test_asleep_it_refuses_by_name(ready):
    asleep = ready.call(SleepEngine(1)).asleep
    assert "until it is woken" in asleep
    ready.add(2)
    outcome = ready.said.get(timeout=PATIENCE)
    assert isinstance(outcome, Refusal)
    assert outcome.error.message == asleep
    assert ready.call(WakeUp(("weights",))).asleep is not None
    assert ready.call(WakeUp(("kv_cache",))).asleep is None
    ready.add(2)
    assert len(ready.finish()) == 2


def test_answers_go_over_the_wire(ready):
    named: EngineAnswer = ready.call(NameWeights("step 7"))
    assert isinstance(named, WeightInfo)
    assert named.version == "step 7"
    sent = decode_from_engine(encode(Answer(3, msgspec.Raw(encode(named)))))
    assert isinstance(sent, Answer)
    assert decoder(answer_type(NameWeights("step 7"))).decode(sent.result) == named


def test_trees_are_taken_between_turns(ready):
    updates = ready.built.weights
    assert updates is not None
    incoming = updates.model.check(on_devices(weights("qwen3", 2)), "auto", partial=False)
    done = ready.loop.call(lambda core: updates.put(incoming, updates.next_version("tree"), mode="keep"))
    assert done.result(PATIENCE) == "tree"
