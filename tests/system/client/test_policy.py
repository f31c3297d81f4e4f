"""When requests are sent again: waits, what servers ask for, and how many retries there may be at all."""

from __future__ import annotations

import math
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.client import RetryBudget, RetryPolicy, http_client
from jaxserve.client.policy import asks_back

NUMBERS = st.floats(0, 1e6)


@given(
    retries=st.integers(0, 300), first=NUMBERS, longest=NUMBERS, retry=st.integers(1, 300), asked=NUMBERS, draw=st.floats(0, 1)
)
def test_a_wait_is_never_before_what_is_asked_nor_long_after(
    retries: int, first: float, longest: float, retry: int, asked: float, draw: float
) -> None:
    seconds = RetryPolicy(retries=retries, first_wait=first, longest_wait=longest).wait(retry, asked, draw)
    if retry > retries or asked > longest:
        assert seconds is None
    else:
        assert seconds is not None
        assert asked <= seconds <= asked + min(longest, first * math.exp2(min(retry - 1, 400))) + 1e-6


def test_waits_double_up_to_the_longest_and_jitter_is_full() -> None:
    policy = RetryPolicy(retries=9, first_wait=0.5, longest_wait=6.0)
    assert [policy.wait(retry, 0.0, 1.0) for retry in range(1, 7)] == [0.5, 1.0, 2.0, 4.0, 6.0, 6.0]
    assert policy.wait(3, 0.0, 0.0) == 0.0
    assert policy.wait(3, 5.0, 0.5) == 6.0


@pytest.mark.parametrize(
    ("status", "headers", "asked"),
    [
        (200, {"retry-after": "3"}, None),
        (400, {}, None),
        (422, {}, None),
        (429, {"retry-after": "3"}, 3.0),
        (429, {"retry-after": "9", "retry-after-ms": "250"}, 0.25),
        (429, {"x-should-retry": "false", "retry-after": "3"}, None),
        (409, {}, None),
        (409, {"retry-after": "2"}, 2.0),
        (418, {"x-should-retry": "true"}, 0.0),
        (500, {}, None),
        (500, {"retry-after": "1"}, 1.0),
        (502, {}, 0.0),
        (503, {"retry-after": "soon"}, 0.0),
        (503, {"retry-after": "-3"}, 0.0),
        (503, {"retry-after": "nan"}, 0.0),
        (503, {"retry-after": "Wed, 25 Nov 2026 10:00:30 GMT"}, 30.0),
        (503, {"retry-after": "Wed, 25 Nov 2026 09:00:00 GMT"}, 0.0),
        (529, {}, 0.0),
    ],
)
def test_answers_that_ask_for_the_request_again(status: int, headers: dict[str, str], asked: float | None) -> None:
    assert asks_back(status, headers, datetime(2026, 11, 25, 10, tzinfo=UTC)) == asked


@given(
    capacity=st.floats(0, 20),
    per_answer=st.floats(0, 2),
    per_second=st.floats(0, 5),
    happenings=st.lists(st.one_of(st.just("answer"), st.just("retry"), st.floats(0, 10)), max_size=200),
)
def test_no_more_retries_than_the_budget_has(
    capacity: float, per_answer: float, per_second: float, happenings: list[str | float]
) -> None:
    """In every stretch of the happenings, not only from the start."""
    now = [0.0]
    budget = RetryBudget(capacity, per_answer, per_second, clock=lambda: now[0])
    excess, worst = 0.0, 0.0  # taken beyond what came in, since the best moment for a stretch to begin
    for one in happenings:
        if one == "answer":
            budget.answered()
            excess -= per_answer
        elif isinstance(one, float):
            now[0] += one
            excess -= one * per_second
        elif budget.take():
            excess += 1.0
        excess = max(excess, 0.0)
        worst = max(worst, excess)
    assert worst <= capacity + 1e-6


def test_a_budget_that_is_spent_fills_by_answers_and_by_time() -> None:
    now = [0.0]
    budget = RetryBudget(2.0, 0.5, 0.25, clock=lambda: now[0])
    assert [budget.take() for _ in range(3)] == [True, True, False]
    budget.answered()
    assert not budget.take()
    budget.answered()
    assert [budget.take(), budget.take()] == [True, False]
    now[0] = 4.0
    assert [budget.take(), budget.take()] == [True, False]
    now[0] = 1e6
    assert [budget.take() for _ in range(3)] == [True, True, False]


def storm(budgets: list[RetryBudget], now: list[float]) -> float:
    """Share of new requests that are answered in the last 5 of 50 s, of which the first 10 are without a server.

    8 new ones come a second, of 100 clients in turn; what was refused comes again a second later. Looking at a request costs the
    server a third of what it does in a tenth of a second, answering it two thirds more: 10 a second are answered if no more come.
    """
    waiting: list[tuple[int, int]] = []  # requests that come now: client, retries so far
    good = 0
    for second in range(50):
        now[0] = float(second)
        coming = [(client % 100, 0) for client in range(second * 8, second * 8 + 8)] + waiting
        waiting = []
        answers = max(0, min(len(coming), int((10 - len(coming) / 3) * 1.5))) if second >= 10 else 0
        good += answers if second >= 45 else 0
        for place, (client, retries) in enumerate(coming):
            budget = budgets[client]
            if place < answers:
                budget.answered()
            elif retries < 5 and budget.take():
                waiting.append((client, retries + 1))
    return good / (5 * 8)


def test_a_storm_of_retries_is_over_where_they_have_a_budget() -> None:
    now = [0.0]
    without = storm([RetryBudget(1e9, clock=lambda: now[0]) for _ in range(100)], now)
    with_one = storm([RetryBudget(2.0, 0.1, 0.0, clock=lambda: now[0]) for _ in range(100)], now)
    assert without < 0.5
    assert with_one == 1.0


@pytest.mark.parametrize(
    "settings",
    [
        {"retries": -1},
        {"retries": 1.5},
        {"retries": True},
        {"first_wait": -0.1},
        {"longest_wait": math.inf},
        {"longest_wait": "1"},
        {"hedge_after": -1.0},
        {"hedge_after": math.nan},
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        RetryPolicy(**settings)


@pytest.mark.parametrize("name", ["capacity", "per_answer", "per_second"])
def test_a_budget_that_makes_no_sense_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        RetryBudget(**{name: -1.0})  # type: ignore[arg-type]  # the clock is none of them


def test_threads_are_not_hedged() -> None:
    with pytest.raises(ValueError, match="hedge_after"):
        http_client(RetryPolicy(hedge_after=1.0))


def test_nothing_of_the_engine_is_imported() -> None:
    code = "import sys, jaxserve.client; print(*sorted({name.partition('.')[0] for name in sys.modules} | set(sys.modules)))"
    names = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"jax", "jaxlib", "flax", "numpy", "msgspec", "server", "fastapi", "grpc"} & set(names)
    ours = {name for name in names if name.startswith("jaxserve.") and not name.startswith("jaxserve.client")}
    # Of jaxserve itself, from the standard library only:
    assert ours == {"jaxserve.import_path", "jaxserve.own_packages", "jaxserve.standard_streams", "jaxserve.versions"}
