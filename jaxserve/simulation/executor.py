"""An executor that computes nothing: a step takes as long as the roofline says, on a virtual clock.

The step's cost is max((weights + KV) / bandwidth, FLOPs / rate) + all-reduces + launch, with the planner's model shapes, hardware
figures and formulas, and for the bucket that the step would be padded to; where memory and arithmetic overlap only in part, the
rest of the shorter one is added. Pages that are swapped or copied are moved before the step, one after another. Steps queue as
they do on a device: one that is submitted while another runs starts when that one ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from jaxserve.clock import VirtualClock
from jaxserve.config.windows import group_layers
from jaxserve.executor.base import Capabilities
from jaxserve.metrics.turn import ExecutorCounts
from jaxserve.planner.memory import Layout
from jaxserve.planner.roofline import LAUNCH_S, decode_step, machine, prefill_step
from jaxserve.step.buckets import Bucket, BucketGrid
from jaxserve.step.plan import Ints, MoveKind, Plan, StepResult

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How real steps differ from the data sheet; fitted to a measured profile, or the planner's figures.

    Attributes:
        compute, attention: shares of the peak FLOP/s that products with weights, and with keys and values, reach, in (0, 1].
        memory, network: shares of the peak HBM and NVLink bandwidth that are reached, in (0, 1].
        overlap: share of the shorter of memory and arithmetic time that hides behind the longer, in [0, 1]; 1 is the roofline.
        launch_s: seconds a step takes on the device beyond its work.
        host_s: seconds the host needs to plan a step and take in another; hidden behind the device where steps overlap.
    """

    compute: float = 0.6
    attention: float = 0.6
    memory: float = 1.0
    network: float = 1.0
    overlap: float = 1.0
    launch_s: float = LAUNCH_S
    host_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of one step. `overlap` of the shorter of memory and arithmetic time hides behind the longer; the rest adds up.

    Attributes:
        memory: reads of weights, keys and values.
        linear, attention: products with weights, and with keys and values.
        network, launch: all-reduces; what a step takes beyond its work.
        overlap: see Calibration.
    """

    memory: float
    linear: float
    attention: float
    network: float
    launch: float
    overlap: float

    @property
    def compute(self) -> float:
        return self.linear + self.attention

    @property
    def total(self) -> float:
        longer, shorter = max(self.memory, self.compute), min(self.memory, self.compute)
        return longer + (1.0 - self.overlap) * shorter + self.network + self.launch


class CostModel:
    """What a step costs on one replica."""

    def __init__(self, layout: Layout, calibration: Calibration, grid: BucketGrid) -> None:
        rates = machine(layout, calibration.compute, calibration.memory)
        self._layout = layout
        self._rates = replace(
            rates,
            attention=machine(layout, calibration.attention).attention,
            link=rates.link * calibration.network,
        )
        self._launch_s = calibration.launch_s
        self._overlap = calibration.overlap
        self._grid = grid
        # A prompt's logits are computed for its last token: two prompt lengths tell what a token costs with them and without.
        with_logits = prefill_step(layout, self._rates, 1).linear_flops
        self._body_flops = prefill_step(layout, self._rates, 2).linear_flops - with_logits
        self._logits_flops = with_logits - self._body_flops
        self._kv_bytes = layout.kv_layer_bytes(layout.tp)  # of one token in one layer
        self._windows = tuple(Counter(layout.shape.windows).items())
        self._padded: dict[Bucket, tuple[float, float, float]] = {}

    def cost(self, counts: Counts, lengths: Counts) -> StepCost:
        """The cost of a step.

        Args:
            counts: int64[R], tokens that each row computes.
            lengths: int64[R], tokens of each row in the cache after the step.
        """
        bucket = self._grid.choose(int(counts.sum()), len(counts), int(counts.max(initial=0)))
        weights_s, linear_s, network_s = self._of_bucket(bucket)
        reads = sum(layers * int(_visible(counts, lengths, window).sum()) for window, layers in self._windows)
        return StepCost(
            memory=weights_s + reads * self._kv_bytes / self._rates.bandwidth,
            linear=linear_s,
            attention=self._attention_s(counts, lengths),
            network=network_s,
            launch=self._launch_s,
            overlap=self._overlap,
        )

    def copy_page_s(self, page_size: int) -> float:
        """Seconds to copy a page of so many tokens, in the layers of one group, within HBM: all of it is read and written."""
        shape = self._layout.shape
        share = group_layers(shape.windows).size / shape.num_layers
        return 2 * page_size * self._layout.kv_token_bytes_device * share / self._rates.bandwidth

    def _attention_s(self, counts: Counts, lengths: Counts) -> float:
        """Seconds of the products with keys and values; latent attention decodes and prefills in different ways."""
        shape = self._layout.shape
        decoding = counts == 1
        decodes = sum(layers * _seen(lengths[decoding], window) for window, layers in self._windows)
        flops = decodes * shape.attention_flops(decode=True)
        if not decoding.all():
            counts, lengths = counts[~decoding], lengths[~decoding]
            pairs = sum(
                layers * int((_pairs(lengths, window) - _pairs(lengths - counts, window)).sum())
                for window, layers in self._windows
            )
            flops += pairs * shape.attention_flops(decode=False)
        return flops / self._layout.tp / self._rates.attention

    def _of_bucket(self, bucket: Bucket) -> tuple[float, float, float]:
        """Seconds of weight reads, products with weights and all-reduces, which depend on the padded shape alone."""
        known = self._padded.get(bucket)
        if known is None:
            step = decode_step(self._layout, self._rates, bucket.tokens, 1)
            flops = bucket.tokens * self._body_flops + bucket.rows * self._logits_flops
            known = self._padded[bucket] = step.weights_s, flops / self._rates.linear, step.network_s
        return known


def _seen(lengths: Counts, window: int | None) -> int:
    """Positions that the last tokens of rows of these lengths see in one layer."""
    return int((lengths if window is None else np.minimum(lengths, window)).sum())


def _visible(counts: Counts, lengths: Counts, window: int | None) -> Counts:
    """Positions of each row that one layer reads, each once: the tokens of a chunk share what they see."""
    return lengths if window is None else np.minimum(lengths, window + counts - 1)


def _pairs(lengths: Counts, window: int | None) -> Counts:
    """(token, position it sees) pairs of the first `lengths` tokens in one layer."""
    short = lengths if window is None else np.minimum(lengths, window)
    return short * (short + 1) // 2 + (lengths - short) * short


@dataclass(frozen=True, slots=True)
class SimulatedHandle:
    clock: VirtualClock
    ends: float
    value: StepResult

    def choose(self, masks: Ints | None) -> None:
        """What a row may choose takes no time."""

    def result(self) -> StepResult:
        """Let time pass until the step is over; every row's token is 0."""
        self.clock.advance(max(self.ends - self.clock.now(), 0.0))
        return self.value


class SimulatedExecutor:
    """Runs plans in virtual time.

    Args:
        clock: moved by `submit` (host time) and by a handle's `result`; shared with the scheduler.
        host_s: see Calibration.
        observe: told of every step: its plan, and the seconds it takes.
    """

    def __init__(
        self,
        limits: Capabilities,
        costs: CostModel,
        clock: VirtualClock,
        host_s: float,
        observe: Callable[[Plan, float], None],
    ) -> None:
        self._limits = limits
        self._costs = costs
        self._clock = clock
        self._host_s = host_s
        self._observe = observe
        self._copy_page_s = costs.copy_page_s(limits.page_size)
        self._free_at = clock.now()

    def capabilities(self) -> Capabilities:
        return self._limits

    def counts(self) -> ExecutorCounts:
        """Nothing: steps are not padded, and there is nothing to compile."""
        return ExecutorCounts()

    def submit(self, plan: Plan) -> SimulatedHandle:
        self._clock.advance(self._host_s)
        counts = (plan.query_start[1:] - plan.query_start[:-1]).astype(np.int64)
        seconds = self._costs.cost(counts, plan.kv_length.astype(np.int64)).total + self._move_s(plan)
        self._free_at = max(self._free_at, self._clock.now()) + seconds
        self._observe(plan, seconds)
        return SimulatedHandle(self._clock, self._free_at, StepResult.of_rows(plan, np.zeros(plan.num_rows, np.int32)))

    def _move_s(self, plan: Plan) -> float:
        """Seconds before the step can start: swaps in both directions share the link."""
        copies = sum(move.kind is MoveKind.COPY for move in plan.moves)
        return (len(plan.moves) - copies) * self._limits.swap_page_seconds + copies * self._copy_page_s
