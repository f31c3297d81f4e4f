"""FairLru forgets the oldest of the largest groups."""

from __future__ import annotations

from jaxserve.routing.fair_lru import FairLru


def filled(most: int, **sizes: int) -> FairLru[str, int]:
    lru: FairLru[str, int] = FairLru(most)
    for group, size in sizes.items():
        for place in range(size):
            lru.put(group, f"{group}{place}", place)
    return lru


def test_a_flood_forgets_its_own() -> None:
    lru = filled(100, quiet=20, flood=1000)
    assert set(lru.trim()) == {f"flood{place}" for place in range(926)}
    assert len(lru) == 94, "a sixteenth is freed beyond what is too much"
    assert all(f"quiet{place}" in lru for place in range(20))


def test_those_above_an_equal_share_are_cut_to_it() -> None:
    lru = filled(30, a=5, b=40, c=60)
    lru.trim()
    left = {group: sum(f"{group}{place}" in lru for place in range(60)) for group in "abc"}
    assert left == {"a": 5, "b": 12, "c": 12}  # 29 places, 5 of them a's


def test_what_was_used_last_stays() -> None:
    lru = filled(16, a=17)
    lru.put("a", "a0", 7)
    assert lru.trim() == ["a1", "a2"]
    assert lru.get("a0") == 7
    assert lru.get("a1") is None


def test_more_groups_than_places() -> None:
    lru: FairLru[int, None] = FairLru(16)
    for place in range(50):
        lru.put(f"group {place}", place, None)
    assert lru.trim() == list(range(35))
    assert len(lru) == 15


def test_a_key_stays_in_its_first_group() -> None:
    lru = filled(4, a=2)
    lru.put("b", "a0", 9)
    lru.put("b", "b0", 1)
    lru.remove("a1")
    lru.remove("a1")
    assert (len(lru), lru.get("a0")) == (2, 9)
    assert sorted(lru.clear()) == ["a0", "b0"]
    assert len(lru) == 0
    lru.put("a", "a0", 3)
    assert lru.get("a0") == 3


def test_nothing_is_forgotten_while_there_is_room() -> None:
    lru = filled(10, a=10)
    assert lru.trim() == []
    assert len(lru) == 10
