"""What a scheduler says of the work it has and the promises it keeps, against sums by hand."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest

from jaxserve.errors import OverloadedError, QueueFullError
from jaxserve.scheduler.demand import demand_of
from jaxserve.scheduler.estimates import PRIOR
from jaxserve.scheduler.promises import MEMORY_SECONDS
from tests.support.bench import BATCH, Bench, request


def test_an_idle_engine_has_no_work() -> None:
    demand = demand_of(Bench(num_pages=41).scheduler)
    assert (demand.work, demand.prompts, demand.promised, demand.broken) == (0.0, 0.0, 0.0, 0.0)
    assert demand.is_sound


def test_work_is_prompts_not_computed_and_outputs_until_they_end() -> None:
    """Two prompts of 20 and 12 tokens, eight a step; outputs of 5 and 400, of which 256 are expected."""
    bench = Bench(num_pages=401, budget=8, prefix_caching=False)
    bench.scheduler.add([request("a", 20, 5)])
    bench.scheduler.add([request("b", 12, 400)])
    outputs = 2.0 * (5 + PRIOR)
    computed = []
    for _ in range(4):
        demand = demand_of(bench.scheduler)
        assert demand.work == demand.prompts + outputs
        computed.append(32 - demand.prompts)
        bench.step(0.1)
    assert computed == [0, 8, 16, 24]
    while "a" in bench.scheduler.sequences:
        bench.step(0.1)
    assert demand_of(bench.scheduler).prompts == 0.0


def test_what_the_cache_has_is_no_work() -> None:
    """Four pages of four tokens are shared; the prompt's last token is always computed."""
    bench = Bench(num_pages=401, budget=64)
    bench.scheduler.add([request("a", range(18), 4)])
    bench.run(10)
    bench.scheduler.add([request("b", range(18), 4)])
    assert demand_of(bench.scheduler).prompts == 2.0


def promises(bench: Bench) -> tuple[float, float]:
    """Promises that came due, and broken ones, before they fade: none of the tests takes long beside `MEMORY_SECONDS`."""
    demand = demand_of(bench.scheduler)
    return round(demand.promised, 1), round(demand.broken, 1)


@pytest.mark.parametrize(("seconds", "broken"), [(0.1, 0.0), (0.6, 1.0), (2.0, 2.0)])
def test_a_first_token_and_the_time_between_tokens_are_promised(seconds: float, broken: float) -> None:
    """A request of four steps: its first token is due after a second, the others half a second apart in the mean."""
    bench = Bench(ttft_target_ms=1000.0, itl_target_ms=500.0)
    bench.scheduler.add([request("a", 8, 4)])
    bench.run(4, seconds)
    made, late = bench.scheduler.promises.lately(0.0)
    faded = math.exp(-3 * seconds / MEMORY_SECONDS)
    assert made == pytest.approx(1.0 + faded)
    assert late == pytest.approx({0.0: 0.0, 1.0: 1.0, 2.0: 1.0 + faded}[broken])


def test_batch_and_what_went_on_from_elsewhere_are_promised_nothing() -> None:
    bench = Bench(ttft_target_ms=1.0, itl_target_ms=1.0)
    bench.scheduler.add([request("a", 8, 4, service_class=BATCH)])
    bench.scheduler.add([request("b", 8, 6, output=(1, 2), resumed=True)])
    bench.run(8, 1.0)
    assert promises(bench) == (0.0, 0.0)


def test_nothing_is_promised_where_there_are_no_targets() -> None:
    bench = Bench(ttft_target_ms=0.0, itl_target_ms=0.0)
    bench.scheduler.add([request("a", 8, 4)])
    bench.run(4, 5.0)
    assert promises(bench) == (0.0, 0.0)


def test_a_refused_request_is_a_broken_promise() -> None:
    bench = Bench(max_num_seqs=1, max_waiting=2)
    for name in "abcde":
        with suppress(QueueFullError, OverloadedError):
            bench.scheduler.add([request(name, 8, 4)])
    assert promises(bench) == (3.0, 3.0)


def test_promises_are_forgotten() -> None:
    bench = Bench(max_num_seqs=1, max_waiting=1)
    for name in "ab":
        with suppress(QueueFullError):
            bench.scheduler.add([request(name, 8, 4)])
    assert demand_of(bench.scheduler).broken == 1.0
    bench.clock.advance(MEMORY_SECONDS)
    assert demand_of(bench.scheduler).broken == pytest.approx(math.exp(-1.0))
    bench.clock.advance(1e6)
    assert demand_of(bench.scheduler).broken == 0.0
