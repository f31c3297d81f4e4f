"""What is made of the rounds of benchmarks.page_viewers."""

import pytest

from benchmarks import page_viewers


def test_ratios_are_those_of_one_round():
    rounds = [
        {count: dict.fromkeys(page_viewers._FIGURES, value * (1.0 + count / 100)) for count in page_viewers.WATCHERS}
        for value in (1.0, 100.0, 7.0)
    ]
    ten = page_viewers.summary(rounds)["10"]["step_ms"]
    assert ten["median"] == pytest.approx(7.7)
    assert ten["ratio"] == {"q1": 1.1, "median": 1.1, "q3": 1.1}, "whatever else the machine did in a round"


def test_what_a_look_takes():
    cost = page_viewers.look_cost(8)
    assert 0.0 < cost["percent_of_a_core"] < 100.0
    assert cost["bytes"] > 1000
