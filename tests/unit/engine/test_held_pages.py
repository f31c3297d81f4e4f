"""What front ends are told that an engine's prefix cache holds: everything at first, then of each page how it is now."""

import random
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.prefix_hash import page_hash
from jaxserve.engine.core import EngineCore
from jaxserve.engine.remote.held import Changed, HeldPages

PAGE, ROOT = 2, b"r" * 16


class Bench:
    """A cache, and front ends by name with what they know of it; the threads are this one, the mail waits for `read`."""

    def __init__(self, windows=(None,)):
        self.cache = KVCache(16, PAGE, prefix_caching=True, windows=windows, max_chunk=8)
        self.core = cast(EngineCore, SimpleNamespace(scheduler=SimpleNamespace(cache=self.cache), tell=self.cache.prefixes.tell))
        self.mail: deque[Any] = deque()
        self.held = HeldPages(windows, self.mail.append)
        self.known: dict[bytes, set[bytes]] = {}
        self.every: dict[bytes, int] = {}

    def fill(self, tokens):
        """A sequence runs and ends."""
        sequence = self.cache.begin(self.cache.find(ROOT, tokens, []), len(tokens))
        assert self.cache.grow(sequence, len(tokens))
        self.cache.commit(sequence, tokens, len(tokens))
        self.cache.release(sequence)

    def ask(self, client, every=1):
        self.every[client] = every
        self.held.asked(client, every)
        self.held.look(self.core, client, every)

    def leave(self, client):
        self.known.pop(client, None)
        if self.held.gone(client):
            self.held.stop(self.core)

    def read(self):
        while self.mail:
            item = self.mail.popleft()
            if isinstance(item, Changed):
                self.held.changed(item)
            elif (change := self.held.looked(item)) is not None:
                self.apply(item.client, change)

    def tick(self):
        self.cache.prefixes.tell()
        self.read()
        change = self.held.take()
        if change is not None:
            for client in self.held.told:
                self.apply(client, change)

    def apply(self, client, change):
        known = self.known.setdefault(client, set())
        if change.cleared:
            known.clear()
        known -= set(change.removed)
        known |= set(change.stored)

    def expected(self, group=0, every=1):
        return {name[:16] for name in self.cache.prefixes.names(every) if (name[16:] or b"\0") == bytes([group])}


@pytest.mark.parametrize("windows", [(None,), (4, None)])
@pytest.mark.parametrize("strides", [(1, 1, 1, 1), (2, 2, 2, 2), (4, 2, 4, 6)])
def test_everybody_knows_what_is_held_whenever_they_came(windows, strides):
    bench, chosen = Bench(windows), random.Random(1)
    group = windows.index(None)
    for turn in range(200):
        for _ in range(chosen.randrange(3)):
            bench.fill([chosen.randrange(3) for _ in range(chosen.randrange(1, 12))])
            if chosen.random() < 0.3:
                bench.cache.prefixes.tell()
        if chosen.random() < 0.1:
            bench.cache.flush()
        if chosen.random() < 0.3:
            client = bytes([chosen.randrange(4)])
            bench.ask(client, strides[client[0]])
        if chosen.random() < 0.1:
            bench.leave(bytes([chosen.randrange(4)]))
        if chosen.random() < 0.3:
            bench.read()
        if turn % 4 == 0:
            bench.tick()
            for client, known in bench.known.items():
                of_interest = bench.expected(group, bench.every[client])
                assert of_interest <= known <= bench.expected(group)
                if set(strides) == {bench.every[client]}:
                    assert known == of_interest


def test_nothing_is_gathered_once_nobody_wants_to_know():
    bench = Bench()
    bench.ask(b"a")
    bench.ask(b"b")
    bench.leave(b"a")
    assert bench.cache.prefixes.events is not None
    bench.leave(b"b")
    assert bench.cache.prefixes.events is None
    bench.leave(b"b")
    bench.read()
    assert bench.known == {}, "one that went away is told nothing"


def test_one_that_comes_while_another_goes_is_told():
    bench = Bench()
    bench.ask(b"a")
    bench.held.asked(b"b", 1)
    assert not bench.held.gone(b"a")
    bench.held.look(bench.core, b"b", 1)
    bench.fill([1, 2, 3, 4])
    bench.tick()
    assert bench.known[b"b"] == bench.expected() == {page_hash(ROOT, [1, 2]), page_hash(page_hash(ROOT, [1, 2]), [3, 4])}


def test_of_a_page_only_how_it_is_now_is_told():
    bench = Bench()
    bench.ask(b"a")
    bench.read()
    assert bench.held.take() is None
    for number in range(12):
        bench.fill([number, 0, 1, 2, 3, 4])
    bench.cache.prefixes.tell()
    bench.read()
    change = bench.held.take()
    assert change is not None
    assert not change.cleared
    assert set(change.stored) == bench.expected()
    assert not set(change.stored) & set(change.removed)
    assert bench.held.take() is None
