"""Whatever requests end engines, and however trials go, they are found with few deaths, and nobody else is blamed."""

from __future__ import annotations

import math
from collections.abc import Collection

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.engine.replicas.suspects import Suspects

NAMES = [f"r{number}" for number in range(64)]


class Engines:
    """Engines that end when a poisonous request is in them, and requests that run for as long as they are in one."""

    def __init__(self, poison: Collection[str]) -> None:
        self.suspects = Suspects()
        self.poison = set(poison)
        self.deaths = 0
        self.guilty: list[str] = []

    def run(self, in_flight: Collection[str]) -> bool:
        """Run requests in an engine. Returns whether it lived."""
        if not self.poison.intersection(in_flight):
            return True
        self.deaths += 1
        self.guilty += (found := self.suspects.died(list(in_flight)))
        self.poison.difference_update(found)
        return False

    def settle(self) -> None:
        """Hold trials until nobody is suspected."""
        while self.suspects.any:
            trial = list(self.suspects.begin())
            assert trial
            assert not self.suspects.held.intersection(trial)
            if self.run(trial):
                assert [self.suspects.passed(one) for one in trial] == [False] * (len(trial) - 1) + [True]


@settings(deadline=None)
@given(st.integers(1, 64), st.data())
def test_culprits_are_found_with_few_deaths(count: int, data: st.DataObject) -> None:
    names = NAMES[:count]
    poison = data.draw(st.sets(st.sampled_from(names), min_size=1, max_size=4))
    engines = Engines(poison)
    engines.run(names)
    engines.settle()
    assert set(engines.guilty) == poison
    assert len(engines.guilty) == len(poison), "each is found once"
    assert engines.deaths <= 1 + len(poison) * (1 + math.ceil(math.log2(count)))
    assert engines.run([one for one in names if one not in poison])


def test_the_newest_request_is_found_with_two_deaths_of_engines() -> None:
    engines = Engines({NAMES[-1]})
    engines.run(NAMES)
    engines.settle()
    assert engines.guilty == [NAMES[-1]]
    assert engines.deaths <= 2 + math.log2(len(NAMES))


@settings(deadline=None)
@given(st.data())
def test_a_request_is_only_blamed_for_a_death_that_it_was_alone_with(data: st.DataObject) -> None:
    """Engines end by themselves; requests end, are aborted, and come late."""
    suspects, alive = Suspects(), set(NAMES[:8])
    for _ in range(data.draw(st.integers(1, 30))):
        trial = list(suspects.trial)
        step = data.draw(st.sampled_from(["die", "begin", "pass", "end", "late", "clear"]))
        if step == "die":
            reached = not trial or data.draw(st.booleans())
            in_flight = (trial or sorted(alive - suspects.held)) if reached else []
            guilty = suspects.died(in_flight)
            assert guilty == (trial if len(trial) == 1 and reached else [])
            assert suspects.held >= set(trial) - set(guilty)
            alive.difference_update(guilty)
            assert suspects.held == alive.intersection(suspects.held | set(in_flight))
        elif step == "begin" and not trial:
            held = suspects.held
            began = set(suspects.begin())
            assert began <= held
            assert suspects.held == held - began
            assert began or not held
        elif step == "pass" and trial:
            suspects.passed(data.draw(st.sampled_from(trial)))
        elif step == "end" and alive:
            gone = data.draw(st.sampled_from(sorted(alive)))
            alive.remove(gone)
            suspects.ended(gone)
            assert gone not in suspects.held
            assert gone not in suspects.trial
        elif step == "late" and alive:
            one = data.draw(st.sampled_from(sorted(alive)))
            suspects.suspect([one])
            assert (one in suspects.held) != (one in suspects.trial)
        elif step == "clear":
            suspects.clear_trial()
            assert not suspects.trial


def test_deaths_are_counted_while_a_request_is_suspected() -> None:
    suspects = Suspects()
    suspects.died(["a", "b", "c", "d"])
    assert suspects.begin() == ["a", "b"]
    suspects.died(["a", "b"])
    assert (suspects.deaths("ab"), suspects.deaths("cd")) == (2, 1)
    for one in "abcd":
        suspects.ended(one)
    assert not suspects.any
    assert suspects.deaths("abcd") == 0
