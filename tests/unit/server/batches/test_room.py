"""How much of the engine lines may take: its rows are filled, its queue never is, and others find rows free."""

import pytest

from jaxserve.clock import VirtualClock
from jaxserve.config.fields import SchedulerConfig
from server.batches.room import MEMORY_SECONDS, Room
from server.batches.turns import Load


class Bench:
    def __init__(self, rows: int = 32, waiting: int = 1024) -> None:
        self.clock = VirtualClock()
        self.others = 0
        self.own = 0
        config = SchedulerConfig(max_num_seqs=rows, max_waiting=waiting, max_waiting_tokens=1000)
        self.room = Room(config, lambda: self.own + self.others, self.clock)

    def sequences(self, others: int = 0, own: int = 0) -> int:
        self.others, self.own = others, own
        bound = self.room.bound(own)
        assert bound.tokens == 500
        return bound.sequences


@pytest.mark.parametrize(
    ("rows", "waiting", "sequences"), [(32, 1024, 40), (256, 1024, 320), (8, 1024, 12), (64, 100, 50), (4, 1, 1)]
)
def test_alone_they_fill_the_rows_and_never_the_queue(rows: int, waiting: int, sequences: int) -> None:
    bench = Bench(rows, waiting)
    assert bench.room.most == Load(sequences, 500)
    assert bench.sequences(own=0) == bench.sequences(own=sequences) == sequences


@pytest.mark.parametrize(("others", "sequences"), [(1, 31), (5, 27), (24, 8), (30, 8), (500, 8)])
def test_others_find_their_rows_free_and_something_is_left_for_batches(others: int, sequences: int) -> None:
    assert Bench().sequences(others, own=20) == sequences


def test_little_room_stays_little() -> None:
    assert Bench(rows=64, waiting=10).sequences(others=1) == 5


def test_what_others_had_is_left_to_them_for_a_while() -> None:
    bench = Bench()
    assert bench.sequences(others=10) == 22
    bench.clock.advance(MEMORY_SECONDS * 0.9)
    assert bench.sequences(others=3) == 22
    bench.clock.advance(MEMORY_SECONDS * 0.2)
    assert bench.sequences(others=2) == 22
    bench.clock.advance(MEMORY_SECONDS)
    assert bench.sequences() == 30
    bench.clock.advance(MEMORY_SECONDS)
    assert bench.sequences() == 40


def test_what_was_long_ago_is_forgotten() -> None:
    bench = Bench()
    assert bench.sequences(others=10) == 22
    bench.clock.advance(2 * MEMORY_SECONDS)
    assert bench.sequences() == 40


def test_ones_own_that_the_engine_does_not_know_of_yet_are_nobodys() -> None:
    bench = Bench()
    bench.own, bench.others = 10, 0
    assert bench.room.bound(25).sequences == 40
    assert bench.room.bound(10).sequences == 40
