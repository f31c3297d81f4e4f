"""How device time is taken.

Calls are dispatched one after another, each fed by the one before, and the clock is looked at when the last is done: what a call
costs the host is hidden as long as it is less than the device's time. It is measured apart, and a timing says "host_bound" where
the host set the pace. Short operations are put several into one program, which is one CUDA graph. The first calls are not timed
(they load modules), and each figure is the median of several batches, kept beside it. What is read must not be in the cache from
the call before: callers rotate over more memory than the cache has.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax

State = TypeVar("State")
Figure = dict[str, Any]

MOST_CALLS = 400  # in a batch
HOST_SHARE = 0.8  # of a call's time beyond which the host may have set it


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long to measure.

    Attributes:
        probes: calls dispatched to see what one costs the host; jax lets 32 be in flight before it waits.
        batch_seconds: of the calls between two looks at the clock, about.
        repeats: such batches; medians are of them.
    """

    probes: int
    batch_seconds: float
    repeats: int


def time_calls(call: Callable[[int, State], State], state: State, pace: Pace, *, operations: int) -> tuple[Figure, State]:
    """Time a call on the device, and return its figure with the last state.

    Args:
        call: dispatches call number i on the state of the call before, and returns its own.
        state: the first state: arrays.
        pace: how long to measure.
        operations: that a call consists of; seconds are given for one.

    Returns:
        seconds: median of the batches, for one operation. low, high: of the fastest and the slowest. raw: all.
        calls: in a batch. host_seconds: to dispatch one operation. host_bound: whether that is most of the time.
    """
    for number in range(2):
        state = jax.block_until_ready(call(number, state))
    start = time.perf_counter()
    for number in range(pace.probes):
        state = call(number, state)
    host = (time.perf_counter() - start) / pace.probes
    jax.block_until_ready(state)
    estimate = (time.perf_counter() - start) / pace.probes
    calls = min(max(math.ceil(pace.batch_seconds / estimate), 1), MOST_CALLS)
    seconds = []
    for _ in range(pace.repeats):
        start = time.perf_counter()
        for number in range(calls):
            state = call(number, state)
        jax.block_until_ready(state)
        seconds.append((time.perf_counter() - start) / calls / operations)
    figure = summary(seconds) | {"calls": calls, "operations": operations, "host_seconds": host / operations}
    return figure | {"host_bound": host / operations > HOST_SHARE * figure["seconds"]}, state


def summary(seconds: list[float]) -> Figure:
    """Median, extremes and all of some times."""
    return {"seconds": statistics.median(seconds), "low": min(seconds), "high": max(seconds), "raw": seconds}
