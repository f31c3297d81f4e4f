"""The swap space that a replica's settings give."""

import pytest

from jaxserve.config.fields import SchedulerConfig
from jaxserve.errors import ConfigError
from jaxserve.simulation.scenario import replica_spec
from jaxserve.simulation.settings import ReplicaConfig

PAGE = 16 * 32 * 2 * 8 * 128 * 2  # bytes of 16 tokens of llama-3-8b: 2 MiB


def limits(**settings):
    return replica_spec(ReplicaConfig(**settings), SchedulerConfig()).limits


def test_there_is_none_by_default():
    assert limits().swap_slots == 0


def test_places_are_what_host_memory_holds():
    assert limits(swap_gib=1.0).swap_slots == 2**30 // PAGE
    assert limits(swap_gib=1.0, page_size=32).swap_slots == 2**30 // PAGE // 2
    assert limits(swap_gib=1.0, tp=2).swap_slots == 2**30 // PAGE, "a page is spread over the GPUs"
    assert limits(swap_gib=1.0, tp=16).swap_slots == 2**30 // PAGE, "heads that two GPUs have are kept once"


def test_a_page_takes_its_bytes_over_the_link():
    assert limits().swap_page_seconds == pytest.approx(PAGE / 55e9)
    assert limits(swap_gbps=25.0).swap_page_seconds == pytest.approx(PAGE / 25e9)
    assert limits(tp=2).swap_page_seconds == pytest.approx(PAGE / 2 / 55e9), "every GPU has its own link"
    assert limits(tp=16).swap_page_seconds == pytest.approx(PAGE / 8 / 55e9), "a GPU has at least one head"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"swap_gib": 0.001}, "swap_gib is 0.001, less than one page: 16 tokens take 2,097,152 bytes"),
        ({"swap_gib": -1.0}, "swap_gib must be at least 0 and finite"),
        ({"swap_gib": float("inf")}, "swap_gib must be at least 0 and finite"),
        ({"swap_gbps": 0.0}, "swap_gbps must be above 0 and finite"),
        ({"swap_gbps": float("nan")}, "swap_gbps must be above 0 and finite"),
    ],
)
def test_impossible_ones_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        limits(**settings)
