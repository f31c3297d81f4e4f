"""Rendezvous hashing: even, by weight, and nothing moves but what must."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from jaxserve.routing.rendezvous import Rendezvous

KEYS = [hashlib.blake2b(str(number).encode(), digest_size=16).digest() for number in range(6000)]


def table(names: list[str], weights: dict[str, float] | None = None) -> Rendezvous:
    rendezvous = Rendezvous()
    for slot, name in enumerate(names):
        rendezvous.join(slot, name, (weights or {}).get(name, 1.0))
    return rendezvous


def homes(names: list[str], weights: dict[str, float] | None = None) -> list[str]:
    rendezvous = table(names, weights)
    return [names[int(rendezvous.scores(key).argmax())] for key in KEYS]


def plain_score(name: str, key: bytes, weight: float) -> float:
    """With Python's integers."""
    mask = 2**64 - 1
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    bits = seed ^ int.from_bytes(key[:8], "little")
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = ((bits ^ (bits >> shift)) * factor) & mask
    bits ^= bits >> 31
    return -weight / math.log(((bits >> 12) + 0.5) / 2**52)


def test_scores_are_those_of_the_formula() -> None:
    weights = {"a": 1.0, "b": 2.5, "c": 0.5}
    rendezvous = table(list(weights), weights)
    for key in KEYS[:50]:
        expected = [plain_score(name, key, weight) for name, weight in weights.items()]
        np.testing.assert_allclose(rendezvous.scores(key), expected, rtol=1e-12)


def test_keys_are_spread_by_weight() -> None:
    found = homes(["slow", "fast", "faster"], {"slow": 1.0, "fast": 2.0, "faster": 3.0})
    shares = [found.count(name) / len(KEYS) for name in ("slow", "fast", "faster")]
    assert shares == pytest.approx([1 / 6, 2 / 6, 3 / 6], abs=0.02)


def test_who_joins_takes_its_share_and_nothing_else_moves() -> None:
    names = [f"replica {number}" for number in range(10)]
    before, after = homes(names), homes([*names, "new"])
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {"new"}
    assert len(moved) / len(KEYS) == pytest.approx(1 / 11, abs=0.015)


def test_who_leaves_gives_its_keys_to_their_second() -> None:
    names = [f"replica {number}" for number in range(10)]
    rendezvous = table(names)
    before = [int(rendezvous.scores(key).argmax()) for key in KEYS]
    seconds = [int(np.argsort(rendezvous.scores(key))[-2]) for key in KEYS]
    rendezvous.leave(4)
    for key, home, second in zip(KEYS, before, seconds, strict=True):
        assert int(rendezvous.scores(key).argmax()) == (second if home == 4 else home)


def test_homes_do_not_depend_on_slots() -> None:
    names = [f"replica {number}" for number in range(7)]
    assert homes(names) == homes(names[::-1])
