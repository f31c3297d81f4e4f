"""The soak beside a hostile client: every body can be made, and the verdicts notice what they are about."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from benchmarks.hostile import compare
from benchmarks.load.hostile import ATTACKS, BY_NAME, Body
from benchmarks.load.minutes import Row


def run(itl: float, memory: float, errors: dict[str, int] | None = None) -> Row:
    minute: dict[str, Any] = {"errors": errors or {}, "memory_mib": {"engine": {"pss": memory}}}
    return {"minutes": [minute] * 3, "seen": {"itl_s": {"p99": itl}}}


@pytest.mark.parametrize("make", ATTACKS)
def test_a_body_is_bytes_and_changes_with_the_seed(make: Body) -> None:
    path, content = make(Random(1))
    assert path.startswith("/")
    assert isinstance(content, bytes)
    assert make(Random(1)) == (path, content)


def test_every_attack_has_a_name_of_its_own() -> None:
    assert set(ATTACKS) < set(BY_NAME.values())
    assert len(BY_NAME) == len(ATTACKS) + 1


@pytest.mark.parametrize(
    ("attacked", "held"),
    [
        (run(0.10, 100, {"429 queue_full": 2, "grpc RESOURCE_EXHAUSTED": 1}), [True, True, True]),
        (run(0.10, 100, {"503 engine_dead": 1}), [False, True, True]),
        (run(0.10, 100, {"cut off": 1}), [False, True, True]),
        (run(0.16, 100), [True, False, True]),
        (run(0.10, 111), [True, True, False]),
    ],
)
def test_verdicts(attacked: Row, held: list[bool]) -> None:
    assert [one["holds"] for one in compare(attacked, run(0.10, 100))] == held
