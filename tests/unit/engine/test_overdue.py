"""When a front end speaks for an engine that does not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from jaxserve.engine.overdue import GRACE_SECONDS, Promise
from jaxserve.errors import DeadlineError
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.request import EngineRequest

STALLED = 10.0


def promise(queue: float = math.inf, end: float = math.inf) -> Promise:
    """Of a request that came at 100 and was handed over a second later."""
    given: Any = {"queue_deadline": 100.0 + queue, "deadline": 100.0 + end}
    request = EngineRequest("r", (1,), SamplingParams(), 1, 0, frozenset(), b"", 100.0, **given)
    return Promise(request, 101.0, STALLED)


def verdict(one: Promise, now: float, heartbeat: float, *, started: bool = False) -> str:
    try:
        one.check(now, heartbeat, started=started)
    except DeadlineError as error:
        return f"{error.param}: {error.message.rpartition('did not ')[2]}"
    return ""


@pytest.mark.parametrize(
    ("after", "heartbeat", "started", "said"),
    [
        (2.0 + GRACE_SECONDS, 100.0, False, ""),  # the engine may speak yet
        (2.1 + GRACE_SECONDS, 100.0, False, "queue_timeout: start in time"),  # it never saw the request
        (2.1 + GRACE_SECONDS, 101.5, False, ""),  # it may have begun a long prompt
        (11.4, 101.5, False, ""),
        (11.6, 101.5, False, "queue_timeout: start in time"),  # it hangs
        (11.6, 101.5, True, ""),
    ],
)
def test_a_late_start_is_said_of_what_cannot_have_begun(after: float, heartbeat: float, started: bool, said: str) -> None:
    assert verdict(promise(queue=2.0), 100.0 + after, heartbeat, started=started) == said


@pytest.mark.parametrize("started", [False, True])
def test_a_late_end_is_said_of_everything(started: bool) -> None:
    one = promise(queue=30.0, end=3.0)
    assert verdict(one, 103.0 + GRACE_SECONDS, 103.4, started=started) == ""
    assert verdict(one, 103.1 + GRACE_SECONDS, 103.5, started=started) == "timeout: end in time"


def test_a_shorter_timeout_is_what_a_late_start_is_named_after() -> None:
    assert verdict(promise(queue=3.0, end=3.0), 103.1 + GRACE_SECONDS, 100.0) == "timeout: end in time"
