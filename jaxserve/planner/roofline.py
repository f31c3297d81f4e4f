"""How long a step takes at least: memory traffic, arithmetic, collectives, launch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from jaxserve.planner.memory import ACTIVATION_BYTES, Layout

Limit = Literal["weight reads", "KV reads", "compute", "interconnect", "launch"]

ALL_REDUCES_A_LAYER = 2  # after the attention's output projection and after the MLP's
HOP_S = 1e-6  # a GPU sees what another wrote over NVLink; of the order that small all-reduces measure
LAUNCH_S = 50e-6  # one replay of a captured step (design studies); launching hundreds of kernels singly would take milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Rates of one GPU, as reached.

    Attributes:
        bandwidth: HBM, bytes/s.
        linear: products with weights, FLOP/s.
        attention: products with keys and values, always in 16 bits, FLOP/s.
        link: NVLink in one direction, bytes/s.
    """

    bandwidth: float
    linear: float
    attention: float
    link: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Cost of one step on one GPU: max(weight and KV reads, compute) + all-reduces + launch.

    Attributes:
        tokens: new tokens in the step: the batch for decode, the prompt for prefill.
        context: tokens each request holds.
        weights_s, kv_s, compute_s, network_s, launch_s: seconds of each.
        total_s: seconds of the step.
        limit: the largest of them.
        linear_flops, attention_flops, weight_bytes, kv_bytes: what was counted, per GPU.
    """

    tokens: int
    context: int
    weights_s: float
    kv_s: float
    compute_s: float
    network_s: float
    launch_s: float
    total_s: float
    limit: Limit
    linear_flops: float
    attention_flops: float
    weight_bytes: float
    kv_bytes: float


def machine(layout: Layout, compute_efficiency: float = 1.0, memory_efficiency: float = 1.0) -> Machine:
    """Rates for a layout. FP8 weights are multiplied in FP8 where the GPU can, others in BF16 after unpacking."""
    gpu = layout.hardware
    peak = gpu.fp8_tflops if layout.weights == "fp8" and gpu.fp8_tflops else gpu.bf16_tflops
    return Machine(
        bandwidth=gpu.bandwidth_gb_s * 1e9 * memory_efficiency,
        linear=peak * 1e12 * compute_efficiency,
        attention=gpu.bf16_tflops * 1e12 * compute_efficiency,
        link=gpu.nvlink_gb_s * 1e9 / 2,
    )


def decode_step(layout: Layout, rates: Machine, batch: int, context: int) -> Step:
    """One token for each of `batch` requests that hold `context` tokens."""
    shape = layout.shape
    return _step(
        layout,
        rates,
        tokens=batch,
        context=context,
        linear_flops=2.0 * batch * _multiplied(layout),
        attention_flops=batch * shape.seen(context, partial(shape.attention_flops, decode=True)) / layout.tp,
        kv_bytes=float(batch * (shape.seen(context, layout.read_bytes) + 2 * layout.state_bytes_device)),  # read and written
    )


def verify_step(layout: Layout, rates: Machine, batch: int, drafts: int, context: int) -> Step:
    """One token and so many drafts for each of `batch` requests that hold `context` tokens; a choice after each of them.

    What a request's tokens see is read once.
    """
    shape, tokens = layout.shape, batch * (1 + drafts)
    return _step(
        layout,
        rates,
        tokens=tokens,
        context=context,
        linear_flops=2.0 * tokens * _multiplied(layout),
        attention_flops=tokens * shape.seen(context, partial(shape.attention_flops, decode=True)) / layout.tp,
        kv_bytes=float(batch * (shape.seen(context, layout.read_bytes) + (2 + drafts) * layout.state_bytes_device)),
    )


def prefill_step(layout: Layout, rates: Machine, prompt: int) -> Step:
    """A whole prompt alone on the machine: its time to first token without queueing. Logits are computed for its last token."""
    shape, body = layout.shape, _multiplied(layout, logits=False)
    return _step(
        layout,
        rates,
        tokens=prompt,
        context=prompt,
        linear_flops=2.0 * (prompt * body + _multiplied(layout) - body),
        attention_flops=shape.seen_by_all(prompt, partial(shape.attention_flops, decode=False)) / layout.tp,
        kv_bytes=float(shape.seen(prompt, layout.read_bytes) + layout.state_bytes_device),  # written once, reread on chip
    )


def decode_floor_s(layout: Layout, rates: Machine) -> float:
    """Seconds a token at least: reading once, from HBM, the weights that one token meets."""
    return _weight_bytes(layout, 1) / rates.bandwidth


def ring_transfer_s(payload: float, devices: int, link: float) -> float:
    """Seconds that the bytes of a ring all-reduce take, latency apart: 2 (N-1)/N payload / link."""
    return 2 * (devices - 1) / devices * payload / link


def all_reduce_s(payload: float, devices: int, link: float) -> float:
    """Seconds of one all-reduce of `payload` bytes: the better of ring and one-shot; 0 for one device.

    A ring moves few bytes in 2 (N-1) hops; one-shot has every device read all others' payloads in two hops.
    """
    if devices == 1:
        return 0.0
    ring = ring_transfer_s(payload, devices, link) + 2 * (devices - 1) * HOP_S
    one_shot = (devices - 1) * payload / link + 2 * HOP_S
    return min(ring, one_shot)


def balance(rates: Machine) -> float:
    """FLOP a byte above which products with weights are limited by arithmetic."""
    return rates.linear / rates.bandwidth


def attention_intensity(layout: Layout) -> float:
    """FLOP a byte of attention in decode: each request reads its own KV, so batching does not change it."""
    return layout.shape.attention_flops(decode=True) / layout.tp / layout.read_bytes(layout.shape.usual_heads)


def crossover_batch(layout: Layout, rates: Machine) -> int:
    """Smallest decode batch whose products with the weights take as long as reading them."""

    def bound(batch: int) -> bool:
        return 2.0 * batch * _multiplied(layout) / rates.linear >= _weight_bytes(layout, batch) / rates.bandwidth

    high = 1
    while not bound(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if bound(middle) else (middle, high)
    return high


def _multiplied(layout: Layout, *, logits: bool = True) -> float:
    """Weights on one GPU that one token is multiplied with."""
    shape = layout.shape
    return sum(
        part.on_device(layout.tp) * shape.touched(part, 1)
        for part in shape.parts
        if part.multiplied and part.use != "row" and (logits or part.use != "last")
    )


def _weight_bytes(layout: Layout, tokens: int) -> float:
    """Weight bytes that a step over `tokens` tokens reads on one GPU; rows of the embedding table are too few to count."""
    shape = layout.shape
    return sum(layout.part_bytes_device(part) * shape.touched(part, tokens) for part in shape.parts if part.use != "row")


def _step(
    layout: Layout, rates: Machine, *, tokens: int, context: int, linear_flops: float, attention_flops: float, kv_bytes: float
) -> Step:
    weight_bytes = _weight_bytes(layout, tokens)
    payload = tokens * layout.shape.hidden_size * ACTIVATION_BYTES
    network = ALL_REDUCES_A_LAYER * layout.shape.num_layers * all_reduce_s(payload, layout.tp, rates.link)
    weights, kv = weight_bytes / rates.bandwidth, kv_bytes / rates.bandwidth
    compute = linear_flops / rates.linear + attention_flops / rates.attention
    memory: Limit = "weight reads" if weights >= kv else "KV reads"
    parts: list[tuple[float, Limit]] = [
        (compute, "compute") if compute > weights + kv else (weights + kv, memory),
        (network, "interconnect"),
        (LAUNCH_S, "launch"),
    ]
    return Step(
        tokens=tokens,
        context=context,
        weights_s=weights,
        kv_s=kv,
        compute_s=compute,
        network_s=network,
        launch_s=LAUNCH_S,
        total_s=sum(seconds for seconds, _ in parts),
        limit=max(parts)[1],
        linear_flops=linear_flops,
        attention_flops=attention_flops,
        weight_bytes=weight_bytes,
        kv_bytes=kv_bytes,
    )
