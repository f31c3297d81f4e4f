"""The HBM ledger, concurrency, and layouts that cannot be."""

from dataclasses import replace

import pytest

from jaxserve.errors import ConfigError
from jaxserve.planner import memory
from jaxserve.planner.memory import GIB
from tests.unit.planner.support import layout


def test_quantized_weights_keep_tables_and_norms_in_16_bits() -> None:
    tables, norms = 2 * 128256 * 4096, 65 * 4096
    body = 8_030_261_248 - tables - norms
    scales = 32 * (6144 + 4096 + 2 * 14336 + 4096)
    assert layout("llama-3-8b", tp=1).weight_bytes == body + 4 * scales + 2 * (tables + norms)
    assert layout("llama-3-8b", tp=1, weights="bf16").weight_bytes == 2 * 8_030_261_248
    assert layout("llama-3-8b", tp=1, weights="w4a16").weight_bytes == body * 4.125 / 8 + 2 * (tables + norms)


def test_a_device_has_its_share_and_copies_of_norms() -> None:
    place = layout("llama-3-8b", tp=4, weights="bf16")
    norms = 65 * 4096
    assert place.weight_bytes_device == 2 * ((8_030_261_248 - norms) / 4 + norms)


def test_the_ledger_adds_up() -> None:
    room = memory.ledger(layout())
    assert room.hbm == room.weights + room.workspace + room.activations + room.margin + room.kv
    assert room.kv_tokens == int(room.kv * GIB / 40960)


def test_concurrency_takes_whole_pages() -> None:
    place = layout()
    assert place.kv_bytes_device(1) == place.kv_bytes_device(16) == 16 * 40960
    assert place.kv_bytes_device(17) == 32 * 40960
    room = memory.ledger(place)
    assert memory.concurrency(place, room, 2033) == memory.concurrency(place, room, 2048) == room.kv_tokens // 2048


def test_a_windowed_layer_holds_its_window() -> None:
    place = layout("gpt-oss-120b", tp=1, weights="mxfp4")
    values = 2 * 8 * 64 * 2
    assert place.kv_bytes_device(128) == 36 * 128 * values
    assert place.kv_bytes_device(8192) == (18 * 128 + 18 * 8192) * values


def test_weights_that_do_not_fit_say_by_how_much_and_what_would_do() -> None:
    with pytest.raises(ConfigError) as error:
        memory.ledger(layout(tp=1, weights="bf16"))
    short = (2 * 70_553_706_496 / GIB + 5.0 - 81559 / 1024) * GIB / 1e9
    assert f"{short:.2f} GB short; tp 2 would fit" in error.value.message


def test_a_model_may_fit_no_layout() -> None:
    place = layout("deepseek-v3", "a100-40", tp=1, weights="bf16")
    with pytest.raises(ConfigError, match="tp 64 would fit"):
        memory.ledger(place)
    with pytest.raises(ConfigError, match="tp 32 would fit"):
        memory.ledger(layout("deepseek-v3", tp=8, weights="bf16"))


@pytest.mark.parametrize(
    ("model", "tp", "words"),
    [
        ("llama-3-70b", 3, "tp 3 does not divide the 64 heads"),
        ("llama-3-8b", 64, "tp 64 does not divide the 32 heads"),
        ("qwen2.5-7b", 8, "tp 8 does not divide the 28 heads"),
        ("qwen2.5-7b", 14, "tp 14 neither divides nor is a multiple of the 4 KV heads"),
    ],
)
def test_heads_must_split_evenly(model: str, tp: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        memory.check_layout(layout(model, tp=tp))


@pytest.mark.parametrize(("model", "tp"), [("llama-3-70b", 16), ("qwen2.5-7b", 28), ("deepseek-v3", 16)])
def test_heads_may_be_copied(model: str, tp: int) -> None:
    memory.check_layout(layout(model, tp=tp))


def test_round_figures_need_a_size_in_the_name_and_room() -> None:
    place = layout(tp=1)
    estimate = memory.round_ledger(place)
    assert estimate is not None
    assert estimate.kv == 80 - 70 - 5
    assert memory.round_ledger(layout(tp=1, weights="bf16")) is None
    nameless = replace(place, shape=replace(place.shape, nominal_billions=None))
    assert memory.round_ledger(nameless) is None
