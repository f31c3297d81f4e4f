"""Step costs: what is counted, and what is called the limit."""

import pytest

from jaxserve.planner import roofline
from jaxserve.planner.roofline import HOP_S, LAUNCH_S
from tests.unit.planner.support import layout


def test_a_decode_step_by_hand() -> None:
    place = layout("llama-3-8b", tp=1, weights="bf16")
    step = roofline.decode_step(place, roofline.machine(place, 0.5, 0.8), batch=4, context=1000)
    table, norms = 128256 * 4096, 65 * 4096
    matrices = 8_030_261_248 - table - norms  # the embedding table is looked up, not multiplied
    assert step.weight_bytes == 2 * (matrices + norms)
    assert step.kv_bytes == 4 * 1000 * 131072
    assert step.linear_flops == 2 * 4 * matrices
    assert step.attention_flops == 4 * 1000 * 32 * 4 * 32 * 128
    assert step.weights_s == step.weight_bytes / (0.8 * 3.35e12)
    assert step.compute_s == pytest.approx((step.linear_flops + step.attention_flops) / (0.5 * 989e12))
    assert step.network_s == 0
    assert step.total_s == pytest.approx(step.weights_s + step.kv_s + LAUNCH_S)
    assert step.limit == "weight reads"


def test_a_prefill_computes_logits_for_its_last_token() -> None:
    place = layout("llama-3-8b", tp=1, weights="bf16")
    step = roofline.prefill_step(place, roofline.machine(place), 100)
    table, norms = 128256 * 4096, 65 * 4096
    assert step.linear_flops == pytest.approx(2 * (100 * (8_030_261_248 - 2 * table - norms) + table))
    assert step.attention_flops == 32 * (100 * 101 // 2) * 4 * 32 * 128


def test_devices_share_the_work() -> None:
    one, eight = layout(hardware="h200", tp=1), layout(hardware="h200", tp=8)
    rates = roofline.machine(one)
    alone, shared = (roofline.decode_step(each, rates, 16, 4096) for each in (one, eight))
    assert shared.attention_flops == alone.attention_flops / 8
    assert shared.kv_bytes == alone.kv_bytes / 8
    assert shared.weight_bytes == pytest.approx(alone.weight_bytes / 8, rel=1e-3)  # norms are copied
    assert shared.network_s > 0


def test_copied_kv_heads_are_read_by_every_device() -> None:
    rates = roofline.machine(layout())
    eight, sixteen = (roofline.decode_step(layout(tp=tp), rates, 16, 4096) for tp in (8, 16))
    assert eight.kv_bytes == sixteen.kv_bytes


@pytest.mark.parametrize(
    ("batch", "context", "limit"),
    [(1, 128, "weight reads"), (256, 8000, "KV reads"), (256, 16, "interconnect"), (4096, 16, "compute")],
)
def test_limits_of_decode(batch: int, context: int, limit: str) -> None:
    place = layout()
    assert roofline.decode_step(place, roofline.machine(place, 0.6), batch, context).limit == limit


def test_prefill_is_limited_by_compute_and_a_tiny_step_by_its_launch() -> None:
    place = layout("llama-3-8b", tp=1)
    assert roofline.prefill_step(place, roofline.machine(place), 8192).limit == "compute"
    fast = roofline.Machine(bandwidth=1e18, linear=1e21, attention=1e21, link=1e18)
    assert roofline.decode_step(place, fast, 1, 16).limit == "launch"


def test_all_reduce_takes_the_better_algorithm() -> None:
    link = 450e9
    assert roofline.all_reduce_s(1e6, 1, link) == 0
    assert roofline.all_reduce_s(16384, 8, link) == 7 * 16384 / link + 2 * HOP_S
    assert roofline.all_reduce_s(2**24, 8, link) == roofline.ring_transfer_s(2**24, 8, link) + 14 * HOP_S


def test_weights_are_multiplied_in_fp8_only_where_the_gpu_can() -> None:
    assert roofline.machine(layout()).linear == 1979e12
    assert roofline.machine(layout(weights="int4")).linear == 989e12
    assert roofline.machine(layout(hardware="a100-80")).linear == 312e12
    assert roofline.machine(layout()).attention == 989e12


@pytest.mark.parametrize("model", ["llama-3-70b", "mixtral-8x7b", "deepseek-v3"])
def test_the_crossover_is_the_first_batch_bound_by_compute(model: str) -> None:
    place = layout(model)
    rates = roofline.machine(place)
    batch = roofline.crossover_batch(place, rates)
    before, at = (roofline.decode_step(place, rates, each, 1) for each in (batch - 1, batch))
    assert before.linear_flops / rates.linear < before.weights_s
    assert at.linear_flops / rates.linear >= at.weights_s


def test_experts_move_the_crossover_out() -> None:
    dense, sparse = layout("llama-3-70b"), layout("mixtral-8x7b")
    rates = roofline.machine(dense)
    assert roofline.crossover_batch(sparse, rates) > 3 * roofline.crossover_batch(dense, rates)


def test_a_batch_reads_more_experts() -> None:
    place = layout("mixtral-8x7b", tp=2)
    rates = roofline.machine(place)
    one, two = (roofline.decode_step(place, rates, batch, 100).weight_bytes for batch in (1, 2))
    experts = 32 * 8 * 3 * 4096 * 14336 / 2
    assert two - one == pytest.approx(experts * (0.4375 - 0.25))
