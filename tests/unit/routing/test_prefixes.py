"""What is known of which replica holds what."""

from __future__ import annotations

from jaxserve.routing.prefixes import PrefixKnowledge
from tests.unit.routing.support import pages

SYSTEM = ("system", 3)
A = pages(SYSTEM, ("a", 2))
B = pages(SYSTEM, ("b", 2))


def knowledge(most: int = 1000, replicas: int = 3) -> PrefixKnowledge:
    known = PrefixKnowledge(most)
    for slot in range(replicas):
        known.join(slot)
    return known


def test_the_longest_first_and_whoever_holds_as_much() -> None:
    known = knowledge()
    known.learn(0, A, "t")
    known.learn(2, B, "t")
    assert known.levels(A) == [(5, 0b001), (3, 0b101)]
    assert known.levels(B[:4]) == [(4, 0b100), (3, 0b101)]
    assert known.levels(pages(SYSTEM, ("c", 1))) == [(3, 0b101)]
    assert known.levels(pages(("other", 2))) == []
    assert known.levels(()) == []


def test_what_a_replica_says_counts() -> None:
    known = knowledge()
    known.learn(1, A, "t")
    known.removed(1, [A[4], b"never heard of"])
    assert known.levels(A) == [(4, 0b010)]
    known.learn(0, A[:1], "t")
    known.cleared(1)
    assert known.levels(A) == [(1, 0b001)]
    assert len(known) == 1
    known.leave(0)
    assert known.levels(A) == []
    known.join(0)
    assert known.levels(A) == []


def test_no_more_than_a_replica_has_room_for_and_prompts_lose_their_ends() -> None:
    known = knowledge(replicas=1)
    known.holds(0, 16)
    for name in "abcdefgh":
        known.learn(0, pages(SYSTEM, (name, 5)), "t")
        assert len(known) <= 16
    assert known.levels(pages(SYSTEM, ("h", 5))) == [(8, 1)]
    assert known.levels(pages(SYSTEM, ("a", 5))) == [(3, 1)], "used by all"


def test_replicas_share_what_may_be_known() -> None:
    known = knowledge(most=40, replicas=2)
    for slot in range(2):
        known.learn(slot, pages(("long", 100)), "t")
    assert 30 <= len(known) <= 40
    known.join(2)
    assert 20 <= len(known) <= 26, "two thirds of it are left to the two"


def test_a_flood_of_one_tenant_forgets_nothing_of_another() -> None:
    known = knowledge(most=100, replicas=1)
    mine = pages(("mine", 30), root=b"mine")
    known.learn(0, mine, "quiet")
    for number in range(200):
        known.learn(0, pages((f"flood {number}", 10), root=b"flood"), "flood")
    assert known.levels(mine) == [(30, 1)]
