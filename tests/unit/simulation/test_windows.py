"""Models with sliding windows in the simulator: what a page is, and what sequences hold."""

from fractions import Fraction

import pytest

from jaxserve.config.fields import SchedulerConfig
from jaxserve.errors import ConfigError
from jaxserve.planner.memory import ledger
from jaxserve.simulation.costs import CostModel
from jaxserve.simulation.scenario import replica_spec
from jaxserve.simulation.settings import ReplicaConfig
from tests.unit.simulation.support import checked, request, scenario, trace

WINDOWED, HALF, FULL = "mistral-7b", "gpt-oss-120b", "llama-3-8b"


def spec(model, **settings):
    return replica_spec(ReplicaConfig(model=model, weights="mxfp4", **settings), SchedulerConfig())


@pytest.mark.parametrize(("model", "share"), [(WINDOWED, Fraction(1)), (HALF, Fraction(1, 2)), (FULL, Fraction(1))])
def test_a_page_is_of_a_group_of_layers(model, share):
    made = spec(model, swap_gib=1.0)
    limits, layout = made.limits, made.layout
    page = 16 * layout.kv_token_bytes * share
    assert len(limits.windows) * share == 1
    assert limits.swap_slots == 2**30 // page
    assert limits.swap_page_seconds == pytest.approx(float(page) / 55e9)
    costs = CostModel(layout, made.calibration, made.grid(limits))
    whole = CostModel(spec(FULL).layout, made.calibration, made.grid(limits))
    per_byte = whole.copy_page_s(16) / (16 * spec(FULL).layout.kv_token_bytes)
    assert costs.copy_page_s(16) == pytest.approx(float(page) * per_byte)


def test_memory_holds_as_many_pages_more_as_there_are_groups():
    tokens = ledger(spec(HALF).layout).kv_tokens
    assert spec(HALF).limits.num_pages == 2 * tokens // 16
    assert spec(HALF, num_pages=2 * tokens // 16).limits.num_pages == 2 * tokens // 16
    with pytest.raises(ConfigError, match="num_pages is"):
        spec(HALF, num_pages=2 * tokens // 16 + 1)


def test_a_sequence_may_be_longer_than_the_cache(tmp_path):
    """4,096 tokens of window and 2,048 of a chunk lie in 385 pages; 20,000 tokens would fill 1,250."""
    path = trace(tmp_path / "t.jsonl", request(0.0, 20_000, 50), request(0.0, 19_000, 50))
    settings = {"model": WINDOWED, "num_pages": 400}
    fleet = checked(scenario(replica=settings, scheduler={"max_num_batched_tokens": 2048}, trace=path))
    assert fleet.ledger.total().finished == 2
    assert spec(WINDOWED, num_pages=400).limits.max_model_len == 32768
    assert spec(FULL, num_pages=400).limits.max_model_len == 399 * 16
