"""What moving pages costs in a simulated step."""

import pytest

from jaxserve.clock import VirtualClock
from jaxserve.executor.base import Capabilities
from jaxserve.planner import catalogue
from jaxserve.planner.memory import Layout
from jaxserve.simulation.costs import Calibration, CostModel
from jaxserve.simulation.executor import SimulatedExecutor
from jaxserve.step.buckets import BucketGrid
from tests.support.plans import copied, make_plan, swapped_in, swapped_out

KV_TOKEN = 32 * 2 * 8 * 128 * 2  # llama-3-8b: bytes of a token in all layers


def seconds(tp=1, memory=1.0, moves=()):
    """A step of one row, on GPUs whose pages take a millisecond to swap."""
    layout = Layout(
        shape=catalogue.model("llama-3-8b"), hardware=catalogue.hardware("h100"), tp=tp, weights="bf16", kv_dtype="bf16"
    )
    limits = Capabilities(4, 64, 64, num_pages=9, page_size=16, swap_slots=4, swap_page_seconds=1e-3)
    costs = CostModel(layout, Calibration(memory=memory), BucketGrid.make(max_rows=4, max_tokens=64, min_rows=1))
    clock, seen = VirtualClock(), []
    executor = SimulatedExecutor(limits, costs, clock, 0.0, lambda step: seen.append(step.seconds))
    executor.submit(make_plan(([5], 1, [1]), moves=moves)).result()
    assert seen == [clock.now()]
    return seen[0]


def test_swaps_in_both_directions_share_the_link():
    moved = seconds(moves=swapped_out((2, 0), (3, 1)) + swapped_in((0, 4))) - seconds()
    assert moved == pytest.approx(3e-3)


@pytest.mark.parametrize(("tp", "memory"), [(1, 1.0), (2, 0.5)])
def test_a_copy_reads_and_writes_a_page_of_each_gpu(tp, memory):
    moved = seconds(tp, memory, moves=copied((2, 3), (2, 4))) - seconds(tp, memory)
    assert moved == pytest.approx(2 * 2 * 16 * KV_TOKEN / tp / (3350e9 * memory), rel=1e-6)
