"""The cost model against numbers worked out by hand and against the planner's own steps."""

import numpy as np
import pytest

from jaxserve.clock import VirtualClock
from jaxserve.executor.base import Capabilities
from jaxserve.planner import catalogue
from jaxserve.planner.memory import Layout
from jaxserve.planner.roofline import decode_step, machine, prefill_step
from jaxserve.simulation.costs import Calibration, CostModel
from jaxserve.simulation.executor import SimulatedExecutor
from jaxserve.step.buckets import BucketGrid

# llama-3-8b: 32 layers of q and o (4096 x 4096), k and v (4096 x 1024), three MLP matrices (4096 x 14336)
BODY = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
LOGITS = 128256 * 4096
NORMS = 32 * 2 * 4096 + 4096
KV = 2 * 8 * 128 * 2  # bytes of a token in one layer
PEAK = Calibration(compute=1.0, attention=1.0, memory=1.0, launch_s=50e-6)


def layout(name: str = "llama-3-8b", tp: int = 1) -> Layout:
    return Layout(shape=catalogue.model(name), hardware=catalogue.hardware("h100"), tp=tp, weights="bf16", kv_dtype="bf16")


def model(of: Layout, rows: int = 32, tokens: int = 512, calibration: Calibration = PEAK) -> CostModel:
    return CostModel(of, calibration, BucketGrid.make(max_rows=rows, max_tokens=tokens, min_rows=1))


def cost(of: CostModel, *rows: tuple[int, int]):
    """Cost of rows of (tokens, length)."""
    return of.cost(np.array([count for count, _ in rows], np.int64), np.array([length for _, length in rows], np.int64))


def test_decode_of_one_row() -> None:
    step = cost(model(layout()), (1, 1000))
    assert step.memory == pytest.approx((2 * (BODY + LOGITS + NORMS) + 1000 * 32 * KV) / 3350e9, rel=1e-12)
    assert step.compute == pytest.approx((2 * (BODY + LOGITS) + 1000 * 32 * 4 * 32 * 128) / 989e12, rel=1e-12)
    assert step.network == 0.0
    assert step.total == step.memory + 50e-6
    assert step.total == pytest.approx(4.5697e-3, rel=1e-4)  # 15.01 GB + 0.131 GB at 3.35 TB/s, and the launch


def test_mixed_step_is_padded_to_its_bucket() -> None:
    step = cost(model(layout()), (1, 1000), (1, 50), (3, 3))  # 5 tokens in 3 rows run as 8 x 8
    seen = 1000 + 50 + (1 + 2 + 3)
    assert step.compute == pytest.approx((2 * 8 * (BODY + LOGITS) + seen * 32 * 4 * 32 * 128) / 989e12, rel=1e-12)
    assert step.memory == pytest.approx((2 * (BODY + LOGITS + NORMS) + 1053 * 32 * KV) / 3350e9, rel=1e-12)


def test_two_all_reduces_a_layer() -> None:
    step = cost(model(layout(tp=2)), (1, 10))
    assert step.network == pytest.approx(64 * (4096 * 2 / 450e9 + 2e-6), rel=1e-12)


def test_factors_scale_their_part() -> None:
    slow = Calibration(compute=0.5, attention=0.5, memory=0.25, network=0.5, launch_s=1e-3)
    plain, scaled = cost(model(layout(tp=2)), (256, 256)), cost(model(layout(tp=2), calibration=slow), (256, 256))
    assert scaled.compute == pytest.approx(2 * plain.compute)
    assert scaled.memory == pytest.approx(4 * plain.memory)
    hops = 64 * 2e-6  # latency does not depend on bandwidth
    assert scaled.network - hops == pytest.approx(2 * (plain.network - hops))
    assert scaled.launch == 1e-3
    assert scaled.total == max(scaled.memory, scaled.compute) + scaled.network + scaled.launch


def test_attention_has_a_share_of_its_own() -> None:
    half = Calibration(compute=1.0, attention=0.5, launch_s=50e-6)
    plain, slow = cost(model(layout()), (256, 256)), cost(model(layout(), calibration=half), (256, 256))
    assert slow.linear == plain.linear
    assert slow.attention == pytest.approx(2 * plain.attention)


@pytest.mark.parametrize("overlap", [0.0, 0.75])
def test_what_does_not_hide_adds_up(overlap: float) -> None:
    part = Calibration(compute=1.0, attention=1.0, overlap=overlap, launch_s=50e-6)
    for row in ((1, 5000), (512, 512)):  # memory is the longer one, then arithmetic
        step = cost(model(layout(), calibration=part), row)
        hidden = overlap * min(step.memory, step.compute)
        assert step.total == pytest.approx(step.memory + step.compute - hidden + 50e-6, rel=1e-12)


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "deepseek-v3"])
def test_whole_prompt_costs_what_the_planner_says(name: str) -> None:
    one = layout(name, tp=8)
    expected = prefill_step(one, machine(one), 300)
    step = cost(model(one, rows=1, tokens=300), (300, 300))
    assert step.compute == pytest.approx(expected.compute_s, rel=1e-12)
    assert step.total == pytest.approx(expected.total_s, rel=1e-12)


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b"])
def test_decode_costs_what_the_planner_says(name: str) -> None:
    one = layout(name, tp=8)
    expected = decode_step(one, machine(one), 16, 5000)
    step = cost(model(one), *[(1, 5000)] * 16)
    assert step.memory == pytest.approx(expected.weights_s + expected.kv_s, rel=1e-12)
    assert step.total == pytest.approx(expected.total_s, rel=1e-12)


@pytest.mark.parametrize("name", ["llama-3-8b", "gpt-oss-120b"])
def test_chunks_do_the_attention_of_the_whole(name: str) -> None:
    """A prompt in chunks attends to as many positions as at once; only what is read again differs."""
    exact = model(layout(name, tp=8), rows=1, tokens=256)
    whole = model(layout(name, tp=8), rows=1, tokens=512)
    parts = cost(exact, (256, 256)).compute + cost(exact, (256, 512)).compute
    logits = 2 * layout(name).shape.vocab_size * layout(name).shape.hidden_size / 8 / 989e12
    assert parts == pytest.approx(cost(whole, (512, 512)).compute + logits, rel=1e-9)


def test_windowed_layers_read_their_window() -> None:
    shape = layout("gpt-oss-120b").shape
    windows = [window for window in shape.windows if window]
    assert windows, "the model has windowed layers"
    near, far = (cost(model(layout("gpt-oss-120b", tp=8)), (1, length)).memory for length in (4096, 8192))
    full = shape.num_layers - len(windows)
    assert far - near == pytest.approx(4096 * full * shape.kv_values(8) * 2 / 3350e9, rel=1e-6)


def test_steps_queue_behind_each_other() -> None:
    clock, seen = VirtualClock(5.0), []
    limits = Capabilities(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64, num_pages=9, page_size=16)
    executor = SimulatedExecutor(limits, model(layout()), clock, 1e-3, lambda step: seen.append(step.seconds))
    assert executor.capabilities() is limits
    plan = one_token_plan()
    first, second = executor.submit(plan), executor.submit(plan)
    assert clock.now() == pytest.approx(5.002), "submitting takes host time alone"
    assert first.result().tokens.tolist() == [[0]]
    assert clock.now() == pytest.approx(5.001 + seen[0])
    second.result()
    assert clock.now() == pytest.approx(5.001 + sum(seen)), "the second began when the first was over"
    second.result()
    assert clock.now() == pytest.approx(5.001 + sum(seen))


def one_token_plan():
    from jaxserve.cache.kv_cache import KVCache
    from jaxserve.config.fields import SchedulerConfig
    from jaxserve.sampling.params import SamplingParams
    from jaxserve.scheduler.request import EngineRequest
    from jaxserve.scheduler.scheduler import Scheduler

    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64)
    scheduler = Scheduler(config, KVCache(9, 16, prefix_caching=True), 64, VirtualClock())
    scheduler.add([EngineRequest("a", (1,), SamplingParams(), 4, 0, frozenset(), b"x", 0.0)])
    plan = scheduler.schedule()
    assert plan is not None
    return plan
