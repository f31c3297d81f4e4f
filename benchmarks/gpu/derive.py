"""From measured times to shares of the bounds, and whether the targets are met."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.tasks import Figure

DECODE_SHARE = 0.85  # of the copy bandwidth, at DECODE_CASE
DECODE_CASE = (64, 4096)  # rows, context
PREFILL_SHARE = 0.75  # of cuDNN's rate, at PREFILL_CASE
PREFILL_CASE = (8192, 8192)  # queries, context
STEP_RATIO = 1.25  # of the roofline, at STEP_ROWS
STEP_ROWS = 64
HOST_GAP = 0.05  # of the step
BLOCKING = 0.8  # of a device's step: where submitting one takes so much, it waits for the device, or the device for it


@dataclass(frozen=True, slots=True)
class Target:
    """A figure that the kernels and the engine were built for.

    Attributes:
        name: what it is.
        value: what was measured; None if it was not.
        wanted: as people read it.
        met: None if it was not measured.
    """

    name: str
    value: float | None
    wanted: str
    met: bool | None


def figures(result: Figure, section: str) -> list[Figure]:
    """What a section, and its part of the second command, measured without an error."""
    parts = [result["sections"].get(name, {}) for name in (section, f"more_{section}")]
    found = [figure for part in parts for figure in part.get("figures", [])]
    return [figure for figure in found if "error" not in figure and "skipped" not in figure]


def rate(result: Figure, *names: str) -> float | None:
    """The best of some bounds, in bytes or FLOPs a second; None if none was measured."""
    bounds = [figure for figure in figures(result, "bandwidth") if figure["what"] in names]
    return max((bound.get("bytes", bound.get("flops")) / bound["seconds"] for bound in bounds), default=None)


def copy_bandwidth(result: Figure) -> float | None:
    """Bytes a second that a copy reads and writes."""
    return rate(result, "copy", "kernel copy")


def shapes(result: Figure) -> Iterator[Figure]:
    """Figures of the other batches of decode attention, with their `share` of the copy bandwidth."""
    bandwidth = copy_bandwidth(result)
    for figure in figures(result, "shapes") + [peer for peer in peers(result) if "shape" in peer]:
        yield figure | {"share": None if bandwidth is None else figure["kv_bytes"] / figure["seconds"] / bandwidth}


def peers(result: Figure) -> list[Figure]:
    """FlashInfer's figures; they have the labels of ours on the same batches."""
    return figures(result, "flashinfer")


def decodes(result: Figure) -> Iterator[Figure]:
    """Decode figures with `bytes_per_second`, and `share` of the copy bandwidth."""
    bandwidth = copy_bandwidth(result)
    for figure in figures(result, "decode") + [peer for peer in peers(result) if peer.get("queries") == 1]:
        reached = figure["kv_bytes"] / figure["seconds"]
        yield figure | {"bytes_per_second": reached, "share": None if bandwidth is None else reached / bandwidth}


def prefills(result: Figure) -> Iterator[Figure]:
    """Prefill figures with `flops_per_second`, and its `share` of dense attention's on the same shape."""
    found = figures(result, "prefill") + [peer for peer in peers(result) if peer.get("queries", 1) > 1]
    measured = [figure | {"flops_per_second": figure["flops"] / figure["seconds"]} for figure in found]
    for figure in measured:
        dense = [other for other in measured if other["implementation"].startswith("dense") and _case(other) == _case(figure)]
        yield figure | {"share": figure["flops_per_second"] / dense[0]["flops_per_second"] if dense else None}


def steps(result: Figure, section: str = "engine") -> Iterator[Figure]:
    """Decode steps of the engine with `roofline_seconds`, `ratio` to it, and `host_gap` as a share of the step; None if unknown.

    The roofline is what reading weights and KV at the copy bandwidth takes, or multiplying at the measured rate if that is more.
    """
    bandwidth, multiply = copy_bandwidth(result), rate(result, "matmul")
    for figure in figures(result, section):
        if figure["what"] != "decode":
            continue
        gap = host_gap(figure)
        roofline = None
        if bandwidth is not None and multiply is not None:
            read = (figure["weight_bytes"] + figure["kv_bytes"]) / bandwidth
            roofline = max(read, figure["flops"] / multiply) / figure["devices"]
        ratio = None if roofline is None else figure["seconds"] / roofline
        yield figure | {"host_gap": gap, "roofline_seconds": roofline, "ratio": ratio}


def host_gap(figure: Figure) -> float | None:
    """What the loop takes beyond the device, as a share of its time; None where submitting waits for the device."""
    device = figure["device"]
    if device["host_seconds"] > BLOCKING * device["seconds"]:
        return None
    return float(max(0.0, figure["seconds"] - device["seconds"]) / figure["seconds"])


def targets(result: Figure) -> list[Target]:
    """Each target beside what was measured. The kernels' are of the Mosaic GPU ones."""
    decode = _first(decodes(result), lambda f: (f["rows"], f["context"]) == DECODE_CASE and _ours(f))
    prefill = _first(prefills(result), lambda f: (f["queries"], f["context"]) == PREFILL_CASE and _ours(f))
    step = _first(steps(result), lambda f: f["rows"] == STEP_ROWS)
    gaps = [found["host_gap"] for found in steps(result) if found["host_gap"] is not None]
    rows, context = DECODE_CASE
    return [
        _at_least(f"decode attention, {rows} rows of {context}: share of copy bandwidth", decode.get("share"), DECODE_SHARE),
        _at_least(f"prefill attention, {PREFILL_CASE[0]} tokens: share of cuDNN's rate", prefill.get("share"), PREFILL_SHARE),
        _at_most(f"8B decode step, {STEP_ROWS} rows: times the roofline", step.get("ratio"), STEP_RATIO),
        _at_most("host gap, the largest: share of the step", max(gaps, default=None), HOST_GAP),
    ]


def _at_least(name: str, value: float | None, bound: float) -> Target:
    return Target(name, value, f"at least {bound:g}", None if value is None else value >= bound)


def _at_most(name: str, value: float | None, bound: float) -> Target:
    return Target(name, value, f"at most {bound:g}", None if value is None else value <= bound)


def _first(found: Iterator[Figure], wanted: Callable[[Figure], bool]) -> dict[str, Any]:
    return next((figure for figure in found if wanted(figure)), {})


def _ours(figure: Figure) -> bool:
    return str(figure["implementation"]).startswith("mosaic_gpu")


def _case(figure: Figure) -> tuple[int, int]:
    return figure["queries"], figure["context"]
