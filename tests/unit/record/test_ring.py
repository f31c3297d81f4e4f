"""The ring keeps the last steps and lets go of the rest."""

import gc
import weakref

import numpy as np
import pytest

from jaxserve.record.ring import StepRing
from jaxserve.step.plan import StepResult
from tests.unit.record.support import Engine, header, request


def steps_of(count, capacity=1000, **options):
    engine = Engine(capacity=capacity, **options)
    engine.core.add([request("a", range(5), 30), request("b", range(7), 30)])
    for _ in range(count):
        engine.core.step()
    return engine


def test_keeps_the_last_steps_by_reference():
    engine = steps_of(12, capacity=5)
    kept = engine.recording().steps
    assert [step.plan for step in kept] == engine.executor.plans[-5:]
    assert [step.plan.step for step in kept] == [7, 8, 9, 10, 11]


def test_a_result_belongs_to_its_plan():
    engine = steps_of(4)
    steps = engine.recording().steps
    assert [step.result.step if step.result else None for step in steps] == [0, 1, 2, None]
    assert [step.seconds for step in steps] == [0.25, 0.25, 0.25, None]


def test_a_result_of_a_step_that_left_is_passed_over():
    engine = steps_of(3, capacity=1)
    assert [(step.plan.step, step.result) for step in engine.recording().steps] == [(2, None)]


def test_holds_the_plan_that_crashed(tmp_path):
    engine = Engine(capacity=3, fails_at=4, directory=tmp_path)
    engine.core.add([request("a", range(5), 30)])
    for _ in range(4):
        engine.core.step()
    with pytest.raises(RuntimeError, match="gone"):
        engine.core.step()
    assert [step.plan.step for step in engine.recording().steps] == [2, 3, 4]


def test_sequences_have_their_request_and_all_their_tokens():
    engine = steps_of(12, capacity=2)
    recording = engine.recording()
    assert [sequence.request.id for sequence in recording.sequences] == ["a", "b"]
    live = engine.core.scheduler.sequences
    for sequence in recording.sequences:
        assert sequence.request is live[sequence.request.id].request
        assert sequence.tokens.tolist() == live[sequence.request.id].tokens
        assert sequence.tokens.dtype == np.int32
    assert [step.sequences for step in recording.steps] == [(0, 1), (0, 1)]


def test_an_id_that_is_used_again_is_another_sequence():
    engine = Engine(capacity=100)
    for prompt in ([1, 2, 3], [4, 5]):
        engine.core.add([request("a", prompt, 2)])
        while engine.core.has_work:
            engine.core.step()
    recording = engine.recording()
    assert [sequence.request.prompt for sequence in recording.sequences] == [(1, 2, 3), (4, 5)]
    assert {step.sequences for step in recording.steps} == {(0,), (1,)}


def test_sequences_are_let_go_with_their_last_step():
    engine = Engine(capacity=3)
    engine.core.add([request("a", range(5), 2)])
    engine.core.step()
    prompt = weakref.ref(engine.executor.plans[0].tokens)
    engine.core.add([request("b", range(7), 20)])
    for _ in range(8):
        engine.core.step()
    assert [sequence.request.id for sequence in engine.recording().sequences] == ["b"]
    engine.executor.plans.clear()
    gc.collect()
    assert prompt() is None


def test_bytes_are_bounded_but_the_last_step_stays():
    engine = steps_of(12)
    plans = engine.executor.plans
    each = [plan.page_table.nbytes + plan.tokens.nbytes + plan.sampling.nbytes for plan in plans]

    def kept(max_bytes):
        ring = StepRing(1000, max_bytes)
        sequences = engine.core.scheduler.sequences
        for plan in plans:
            ring.planned(plan, sequences)
            ring.collected(plan, StepResult.of_rows(plan, plan.slots), 0.0)
        recording = ring.recording(header(engine.executor.capabilities()), "", 0.0)
        return [step.plan.step for step in recording.steps]

    assert kept(sum(each)) == list(range(12))
    assert kept(sum(each) - 1) == list(range(1, 12))
    assert kept(sum(each[-3:])) == [9, 10, 11]
    assert kept(1) == [11]
