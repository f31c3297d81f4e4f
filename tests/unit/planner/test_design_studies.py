"""The figures of the design studies, one test each, to the rounding the studies use.

Where a study's own arithmetic does not hold, docs/planner.md says so and the test here is of the right figure.
"""

from dataclasses import replace

import pytest

from jaxserve.errors import ConfigError
from jaxserve.planner import fleet, memory, roofline
from jaxserve.planner.memory import GIB, KvFormat, MemoryBudget, WeightFormat
from tests.unit.planner.support import layout

KIB = 1024


def estimate(**changes: object) -> MemoryBudget:
    room = memory.round_ledger(layout(**changes))  # type: ignore[arg-type]
    assert room is not None
    return room


@pytest.mark.parametrize(("weights", "gb"), [("bf16", 140), ("fp8", 70), ("int4", 35), ("mxfp4", 37)])
def test_weights_of_70b(weights: WeightFormat, gb: float) -> None:
    assert 8 * estimate(weights=weights).weights == pytest.approx(gb, abs=0.2)


@pytest.mark.parametrize(
    ("tp", "weights", "gb"),
    [(8, "bf16", 17.5), (8, "fp8", 8.75), (2, "bf16", 70.0), (2, "fp8", 35.0), (2, "int4", 17.5)],
)
def test_weights_of_70b_on_a_gpu(tp: int, weights: WeightFormat, gb: float) -> None:
    assert estimate(tp=tp, weights=weights, hardware="h200").weights == gb


@pytest.mark.parametrize(
    ("model", "kib"),
    [("llama-2-7b", 512), ("llama-3-8b", 128), ("llama-3-70b", 320), ("llama-3.1-70b", 320), ("llama-3.1-405b", 504)],
)
def test_kv_bytes_a_token(model: str, kib: int) -> None:
    assert layout(model).kv_token_bytes == kib * KIB


def test_kv_bytes_a_token_on_a_gpu() -> None:
    assert layout().kv_token_bytes_device == 40 * KIB


def test_kv_bytes_a_token_in_one_layer() -> None:
    assert layout().kv_token_bytes == 80 * 4 * KIB


def test_fp8_halves_the_kv_bytes() -> None:
    assert layout(kv_dtype="fp8").kv_number_bytes == 160 * KIB


@pytest.mark.parametrize("kv_dtype", ["fp8", "int8"])
def test_scales_are_2_bytes_for_the_128_numbers_of_a_key(kv_dtype: KvFormat) -> None:
    place = layout(kv_dtype=kv_dtype)
    assert place.kv_token_bytes == place.kv_number_bytes * 130 / 128 == 162.5 * KIB
    assert layout().kv_token_bytes == layout().kv_number_bytes


def test_without_grouped_queries_kv_is_eight_times_as_large() -> None:
    place = layout()
    full = replace(place, shape=replace(place.shape, num_kv_heads=64))
    assert full.kv_token_bytes == 8 * place.kv_token_bytes == 2_621_440  # 2.6 MB, 2.5 MiB
    assert 16 * full.kv_token_bytes / 1e6 == pytest.approx(41, abs=1)  # a page
    assert 512 * full.kv_token_bytes / 1e9 == pytest.approx(1.3, abs=0.05)
    assert 4096 * full.kv_token_bytes / 1e9 == pytest.approx(10.7, abs=0.05)


def test_latent_attention_needs_less_than_100_kb_a_token() -> None:
    assert layout("deepseek-v3").kv_token_bytes / 1e3 == pytest.approx(70, abs=0.5)


def test_one_request_of_128k_tokens() -> None:
    place = layout()
    assert place.kv_bytes_device(128 * KIB) == 5 * GIB
    assert 8 * place.kv_bytes_device(128 * KIB) == 40 * GIB


def test_one_request_of_100k_tokens() -> None:
    assert 8 * layout().kv_bytes_device(100 * KIB) / GIB == pytest.approx(32, abs=1)


def test_a_request_of_4k_tokens_with_fp8_kv() -> None:
    place = layout(tp=1, kv_dtype="fp8")
    assert 4096 * place.kv_number_bytes == 640 * 2**20
    assert place.kv_bytes_device(4096) == 650 * 2**20  # with scales


@pytest.mark.parametrize(
    ("hardware", "weights", "gb", "millions"),
    [("h100", "fp8", 66.25, 1.7), ("h200", "fp8", 126.75, 3.3), ("h100", "bf16", 57.5, 1.5)],
)
def test_memory_for_kv(hardware: str, weights: WeightFormat, gb: float, millions: float) -> None:
    room = estimate(hardware=hardware, weights=weights)
    assert room.kv == gb
    assert round(room.kv_tokens / 1e6, 1) == millions


def test_tokens_of_kv_counted_in_gib() -> None:
    assert estimate().kv_tokens / 1e6 == pytest.approx(1.74, abs=0.005)


@pytest.mark.parametrize(("hardware", "millions"), [("h100", 1.7), ("h200", 3.3)])
def test_weights_and_memory_counted_exactly_give_the_same_tokens(hardware: str, millions: float) -> None:
    assert round(memory.ledger(layout(hardware=hardware)).kv_tokens / 1e6, 1) == millions


def test_concurrency_of_two_h100s_at_4k() -> None:
    place = layout(tp=2, kv_dtype="fp8")  # that study leaves 70 GB of the 160 for KV
    room = replace(memory.ledger(place), kv=35.0)
    assert memory.concurrency(place, room, 4096) == pytest.approx(110, abs=5)


@pytest.mark.parametrize(("weights", "flops"), [("bf16", 295), ("fp8", 591)])
def test_balance_point(weights: WeightFormat, flops: int) -> None:
    assert round(roofline.balance(roofline.machine(layout(weights=weights)))) == flops


def test_products_with_weights_are_limited_by_compute_from_a_batch_of_about_300() -> None:
    for weights in ("bf16", "fp8"):
        place = layout(weights=weights)
        assert roofline.crossover_batch(place, roofline.machine(place)) == pytest.approx(300, abs=10)


@pytest.mark.parametrize(("tp", "ms", "tokens"), [(8, 2.6, 380), (2, 10.5, 96), (4, 5.3, 190)])
def test_decode_floor(tp: int, ms: float, tokens: float) -> None:
    place = layout(tp=tp)
    floor = roofline.decode_floor_s(place, roofline.machine(place))
    assert floor * 1e3 == pytest.approx(ms, abs=0.05)
    assert 1 / floor == pytest.approx(tokens, rel=0.02)


def test_decode_floor_of_one_b200() -> None:
    place = layout(hardware="b200", tp=1)
    assert roofline.decode_floor_s(place, roofline.machine(place)) * 1e3 == pytest.approx(9, abs=0.2)


def test_reading_the_kv_of_2k_tokens() -> None:
    place = layout()
    assert place.kv_bytes_device(2048) == 80 * 2**20
    one, many = (roofline.decode_step(place, roofline.machine(place), batch, 2048).kv_s for batch in (1, 128))
    assert one * 1e6 == pytest.approx(24, abs=1.1)
    assert many * 1e3 == pytest.approx(3, abs=0.25)


def test_reading_weights_and_kv_for_128_requests_takes_5_to_6_ms() -> None:
    place = layout()
    step = roofline.decode_step(place, roofline.machine(place), 128, 2048)
    seconds = step.weights_s + step.kv_s
    assert 5e-3 < seconds < 6e-3
    assert 160 < 1 / seconds < 200


@pytest.mark.parametrize(("batch", "ms", "tokens"), [(64, 16.6, 3855), (128, 22.7, 5640)])
def test_decode_on_two_h100s_at_4k_with_fp8_kv(batch: int, ms: float, tokens: int) -> None:
    place = layout(tp=2, kv_dtype="fp8")
    step = roofline.decode_step(place, roofline.machine(place), batch, 4096)
    seconds = step.weights_s + step.kv_s * place.kv_number_bytes / place.kv_token_bytes  # the study has no scales
    assert seconds * 1e3 == pytest.approx(ms, rel=0.03)  # the study takes GiB of KV for GB
    assert batch / seconds == pytest.approx(tokens, rel=0.03)


@pytest.mark.parametrize(("prompt", "ms"), [(4096, 287), (8192, 575), (32768, 2300)])
def test_prefill_of_weights_alone_at_2000_tflops(prompt: int, ms: float) -> None:
    place = layout(tp=2)
    rates = roofline.machine(place, 1000 / 1979)
    step = roofline.prefill_step(place, rates, prompt)
    assert step.linear_flops / rates.linear * 1e3 == pytest.approx(ms, rel=0.03)


def test_attention_doubles_the_prefill_of_100k_tokens() -> None:
    place = layout("llama-3.1-70b", tp=2)
    rates = roofline.machine(place, 1000 / 1979)
    step = roofline.prefill_step(place, rates, 100_000)
    assert step.linear_flops / rates.linear == pytest.approx(7, abs=0.2)  # the study's 7 s
    assert step.attention_flops == pytest.approx(step.linear_flops, rel=0.05)  # which it leaves out


def test_prefill_of_512_tokens_is_limited_by_compute() -> None:
    place = layout(tp=1, hardware="b200")
    assert roofline.prefill_step(place, roofline.machine(place, 0.6), 512).limit == "compute"


def test_all_reduce_of_128_tokens_over_nvlink() -> None:
    payload = 128 * 8192 * 2
    seconds = roofline.ring_transfer_s(payload, 8, 450e9)
    assert payload == 2 * 2**20
    assert round(seconds * 1e6) == 8
    assert round(160 * seconds * 1e3, 1) == 1.3


def test_all_reduce_of_128_tokens_over_infiniband() -> None:
    seconds = roofline.ring_transfer_s(2 * 2**20, 8, 50e9)
    assert seconds * 1e6 == pytest.approx(70, abs=5)
    assert 160 * seconds * 1e3 == pytest.approx(11, abs=1)


def test_671b_in_fp8_needs_more_than_eight_h100s() -> None:
    with pytest.raises(ConfigError, match=r"deepseek-v3 in fp8 leaves no room .* tp 16 would fit"):
        memory.ledger(layout("deepseek-v3"))
    assert layout("deepseek-v3").weight_bytes / 1e9 == pytest.approx(671, rel=0.01)


def test_70b_in_16_bits_needs_two_gpus() -> None:
    with pytest.raises(ConfigError, match="tp 2 would fit"):
        memory.ledger(layout(tp=1, weights="bf16"))


def test_a_token_of_experts_reads_the_active_weights() -> None:
    place = layout("deepseek-v3", "h200", tp=1)
    assert roofline.decode_floor_s(place, roofline.machine(place)) * 4.8e12 / 1e9 == pytest.approx(37, abs=1)


def test_price_of_a_million_tokens() -> None:
    assert fleet.usd_per_m_tokens(8 * 2.5, 30_000) == pytest.approx(0.18, abs=0.006)


@pytest.mark.parametrize(("tokens", "usd"), [(1200, 1.16), (800, 1.74)])
def test_price_of_a_million_tokens_on_two_gpus(tokens: int, usd: float) -> None:
    assert round(fleet.usd_per_m_tokens(2 * 2.5, tokens), 2) == usd


def test_a_node_decodes_about_25k_tokens_a_second_at_2k() -> None:
    place = layout()
    batch = memory.concurrency(place, memory.ledger(place), 2048)
    step = roofline.decode_step(place, roofline.machine(place, 0.6), batch, 2048)
    assert batch / step.total_s == pytest.approx(25_000, rel=0.05)
