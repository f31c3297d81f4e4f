"""What a step costs: a roofline of the step's bucket, and of its rows' keys and values.

The step's cost is max((weights + KV) / bandwidth, FLOPs / rate) + all-reduces + launch, with the planner's model shapes, hardware
figures and formulas, and for the bucket that the step would be padded to; where memory and arithmetic overlap only in part, the
rest of the shorter one is added.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from jaxserve.config.windows import group_layers
from jaxserve.planner.memory import Layout
from jaxserve.planner.roofline import LAUNCH_S, decode_step, machine, prefill_step
from jaxserve.step.buckets import Bucket, BucketGrid

Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


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
        self._layers = tuple(Counter(zip(layout.shape.windows, layout.shape.layer_heads, strict=True)).items())
        self._padded: dict[Bucket, tuple[float, float, float]] = {}

    def cost(self, counts: Counts, lengths: Counts, drafts: Counts | None = None) -> StepCost:
        """The cost of a step.

        Args:
            counts: int64[R], tokens that each row computes.
            lengths: int64[R], tokens of each row in the cache after the step.
            drafts: int64[R], how many of them are drafts; None of rows that have none.
        """
        most = 0 if drafts is None else int(drafts.max(initial=0))
        bucket = self._grid.choose(int(counts.sum()), len(counts), int(counts.max(initial=0)), drafts=most)
        weights_s, linear_s, network_s = self._of_bucket(bucket)
        reads = sum(
            layers * int(_visible(counts, lengths, window).sum()) * self._layout.read_bytes(heads)
            for (window, heads), layers in self._layers
        )
        reads += (2 * len(counts) + (0 if drafts is None else int(drafts.sum()))) * self._layout.state_bytes_device
        return StepCost(
            memory=weights_s + reads / self._rates.bandwidth,
            linear=linear_s,
            attention=self._attention_s(counts, lengths, counts == 1 if drafts is None else counts == 1 + drafts),
            network=network_s,
            launch=self._launch_s,
            overlap=self._overlap,
        )

    def copy_page_s(self, page_size: int) -> float:
        """Seconds to copy a page of so many tokens, in the layers of one group, within HBM: all of it is read and written."""
        shape = self._layout.shape
        share = group_layers(shape.cache_windows).size / len(shape.cache_windows)
        return 2 * page_size * self._layout.held_token_bytes_device * share / self._rates.bandwidth

    def _attention_s(self, counts: Counts, lengths: Counts, decoding: Flags) -> float:
        """Seconds of the products with keys and values; latent attention decodes and prefills in different ways."""
        flops = 0.0
        for chosen, decode in ((decoding, True), (~decoding, False)):
            if chosen.any():
                flops += self._attention_flops(counts[chosen], lengths[chosen], decode=decode)
        return flops / self._layout.tp / self._rates.attention

    def _attention_flops(self, counts: Counts, lengths: Counts, *, decode: bool) -> int:
        """FLOPs of all (token, position it sees) pairs of rows, summed over layers."""
        shape, alone = self._layout.shape, counts.max() == 1
        total = 0
        for (window, heads), layers in self._layers:
            if alone:
                pairs = _seen(lengths, window)
            else:
                pairs = int((_pairs(lengths, window) - _pairs(lengths - counts, window)).sum())
            total += layers * pairs * shape.attention_flops(heads, decode=decode)
        return total

    def _of_bucket(self, bucket: Bucket) -> tuple[float, float, float]:
        """Seconds of weight reads, products with weights and all-reduces, which depend on the padded shape alone."""
        known = self._padded.get(bucket)
        if known is None:
            step = decode_step(self._layout, self._rates, bucket.tokens, 1)
            flops = bucket.tokens * self._body_flops + bucket.rows * (1 + bucket.drafts) * self._logits_flops
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
