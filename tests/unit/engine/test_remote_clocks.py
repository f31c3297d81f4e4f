"""Another machine's clock: whatever messages take, it is known within half a round trip."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from jaxserve.engine.remote.clocks import DRIFT, FarClock

EPSILON = 1e-6  # of sums of times
seconds = st.floats(0.0, 5.0)


def test_nothing_is_known_before_the_first_round_trip() -> None:
    assert FarClock().off(5.0) == math.inf


@given(
    ahead=st.floats(-1e5, 1e5),
    drift=st.floats(-DRIFT, DRIFT),
    trips=st.lists(st.tuples(st.floats(0.0, 1e4), seconds, seconds), min_size=1, max_size=20),
)
def test_it_is_off_by_no_more_than_it_says(ahead: float, drift: float, trips: list[tuple[float, float, float]]) -> None:
    """Ways there and back of any lengths, after any pauses, to a clock that runs a little faster or slower."""
    clock, now = FarClock(), 100.0
    for pause, there, back in trips:
        sent = now + pause
        read = sent + there
        now = read + back
        clock.read(sent, read + ahead + drift * read, now)
        assert clock.off(now) <= (there + back) / 2 + EPSILON, "as good as the latest reading, or better"
        assert abs(clock.ahead - (ahead + drift * now)) <= clock.off(now) + abs(drift) * (there + back) + EPSILON


def test_a_short_round_trip_counts_until_it_is_old() -> None:
    clock = FarClock()
    clock.read(0.0, 1000.0, 0.002)
    clock.read(1.0, 1001.9, 2.0)
    assert clock.ahead == 1000.0 - 0.001
    clock.read(1.0 / DRIFT, 2000.0 + 1.0 / DRIFT, 1.0 / DRIFT + 1.0)
    assert clock.ahead == 2000.0 - 0.5
