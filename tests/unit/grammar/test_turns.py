"""The queue of grammars: turns between tenants."""

from __future__ import annotations

from jaxserve.grammar.turns import TenantTurns


def test_tenants_take_turns() -> None:
    turns: TenantTurns[str] = TenantTurns()
    for job in ("a1", "a2", "a3", "a4"):
        turns.put("a", job)
    assert turns.take() == "a1"
    turns.put("b", "b1")
    turns.put("b", "b2")
    assert [turns.take() for _ in range(5)] == ["a2", "b1", "a3", "b2", "a4"]


def test_removed_jobs_are_not_taken() -> None:
    turns: TenantTurns[str] = TenantTurns()
    turns.put("a", "a1")
    turns.put("a", "a2")
    turns.put("b", "b1")
    turns.remove("a", "a1")
    turns.remove("b", "b1")
    turns.remove("b", "never put")
    assert turns.take() == "a2"


def test_a_closed_queue_gives_and_takes_nothing() -> None:
    turns: TenantTurns[str] = TenantTurns()
    turns.put("a", "a1")
    assert turns.close() == ["a1"]
    assert turns.take() is None
    assert not turns.put("a", "a2")
