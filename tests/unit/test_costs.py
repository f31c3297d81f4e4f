"""Limits on what tests cost."""

from __future__ import annotations

from tests.support.costs import Cost, budget, exceeded


def test_a_folder_may_cost_what_was_counted_and_no_more() -> None:
    counted = {"tests/a": Cost(9.0, compilations=20, engines=2), "tests/b": Cost(1.0)}
    limits = budget(counted)
    assert limits == {"tests/a": {"compilations": 43, "engines": 2}, "tests/b": {}}
    assert not exceeded(counted, limits)
    more = {"tests/a": Cost(engines=3), "tests/b": Cost(processes=1)}
    assert exceeded(more, limits) == [
        "tests/a: 3 engines, and tests/budget.json allows 2",
        "tests/b: 1 processes, and tests/budget.json allows 0",
    ]
