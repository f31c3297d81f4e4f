from typing import Any

import pytest

from jaxserve.metrics.instruments import Instruments
from jaxserve.metrics.steps import FLUSH_SECONDS, StepRecorder
from jaxserve.metrics.turn import ExecutorCounts, SchedulerCounts, Turn
from tests.unit.metrics.scrape import recorded

MODEL = ("pico",)


class Executor:
    counts = ExecutorCounts(compiled_programs=9)


def turn(at, *, step, collected, idle=False):
    return Turn(at, at + 0.001, at + 0.003, at + 0.006, at + 0.01, at + 0.015, step, 3, 40, collected, at - 0.1, idle=idle)


def test_turns_are_recorded_when_the_engine_is_idle():
    instruments, executor = Instruments(), Executor()
    recorder = StepRecorder(instruments, "pico", lambda: executor.counts, method="ngram")
    assert recorded(instruments)["compiled_programs_total", MODEL] == 9
    recorder.turned(turn(0.0, step=0, collected=-1))
    assert recorded(instruments)["batch_rows_count", MODEL] == 0
    counts: dict[str, Any] = {
        "compiled_programs": 10,
        "late_compiles": 1,
        "bucket_misses": 2,
        "padding_tokens": 24,
        "weight_checks": 7,
    }
    counts |= {"swapped_out_pages": 20, "swapped_in_pages": 18}
    executor.counts = ExecutorCounts(**counts)
    last = turn(0.02, step=-1, collected=0, idle=True)
    last.counts = SchedulerCounts(5, 4, 3, 20, 0.5, 7, 2, 6, 30, 12, 0.25, (6, 4, 2))
    recorder.turned(last)
    seen = recorded(instruments)
    assert seen["batch_rows_count", MODEL] == seen["batch_tokens_count", MODEL] == seen["step_seconds_count", MODEL] == 1
    assert (seen["batch_rows_sum", MODEL], seen["batch_tokens_sum", MODEL]) == (3, 40)
    assert seen["step_seconds_sum", MODEL] == pytest.approx(0.106)  # from when it began on the device to its result
    phases = {phase: seen["step_phase_seconds_sum", ("pico", phase)] for phase in ("plan", "launch", "wait", "apply", "emit")}
    assert phases == pytest.approx({"plan": 0.002, "launch": 0.004, "wait": 0.006, "apply": 0.008, "emit": 0.01})
    assert seen["step_phase_seconds_count", ("pico", "emit")] == 2
    assert {name: seen[f"{name}_total", MODEL] for name in counts} == counts
    of_scheduler = ("step_budget_raises", "queue_estimate_misses", "overloads", "masked_rows", "mask_seconds", "forced_tokens")
    assert [seen[f"{name}_total", MODEL] for name in (*of_scheduler, "adapter_loads")] == [5, 4, 3, 20, 0.5, 7, 2]
    guessed = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "seconds")
    assert [seen[f"spec_decode_{name}_total", ("ngram", "pico")] for name in guessed] == [6, 30, 12, 0.25]
    at = [seen["spec_decode_num_accepted_tokens_per_pos_total", ("ngram", "pico", str(position))] for position in range(3)]
    assert at == [6, 4, 2]


def test_a_busy_engine_is_recorded_now_and_then():
    instruments = Instruments()
    recorder = StepRecorder(instruments, "pico", ExecutorCounts)
    for number in range(3):
        recorder.turned(turn(number * FLUSH_SECONDS / 2, step=number, collected=number - 1))
    assert recorded(instruments)["batch_rows_count", MODEL] == 3
    recorder.turned(turn(2 * FLUSH_SECONDS, step=3, collected=2))
    assert recorded(instruments)["batch_rows_count", MODEL] == 3
