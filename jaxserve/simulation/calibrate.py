"""Fits the cost model's factors to measured steps.

For given factors a step takes, in the nominal times M of memory, L and A of products with weights and with keys and values,

    max(m M, l L + a A) + (1 - overlap) min(m M, l L + a A) + launch

which is linear in m, l, a and launch once it is known which of the two is longer at each step. So the fit guesses that, solves a
least-squares problem of relative errors with bounds, looks which one is longer now, and goes on until nothing changes; for every
overlap of a grid, of which the best is taken. (The same alternation fits max-affine functions: Magnani and Boyd, "Convex
piecewise-linear fitting", Optimization and Engineering 10, 2009.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jaxserve.errors import ConfigError
from jaxserve.planner import catalogue
from jaxserve.planner.catalogue import Hardware
from jaxserve.planner.hf import shape_from_hf
from jaxserve.planner.memory import Layout
from jaxserve.simulation.costs import Calibration, CostModel
from jaxserve.simulation.profile import MeasuredStep, Profile
from jaxserve.step.buckets import BucketGrid

Floats = npt.NDArray[np.float64]

_OVERLAPS = np.linspace(0.0, 1.0, 21)
_ROUNDS = 50  # the alternation settles in a handful, or goes to and fro between two fits that are as good
_LARGEST_ERROR = 0.5  # a mean error beyond it is no fit


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedStep:
    """A measured step and what the fit says of it: rows, tokens, tokens in the cache, seconds."""

    rows: int
    tokens: int
    kv_tokens: int
    measured: float
    fitted: float

    @property
    def error(self) -> float:
        """Share of the measured time that the fit is too long by; negative where it is too short."""
        return self.fitted / self.measured - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The machine and the factors that a profile tells.

    Attributes:
        hardware: the GPU of the profile; for a machine that the planner does not know, one with the rates that were reached.
        calibration: the factors, relative to `hardware`.
        min_rows: of the executor's smallest bucket.
        steps: every measured step beside the fit.
        mean_error: root of the mean squared relative error.
    """

    hardware: Hardware
    known: bool
    calibration: Calibration
    min_rows: int
    steps: tuple[FittedStep, ...]
    mean_error: float


@dataclass(frozen=True, slots=True)
class _Factors:
    """Solution for one overlap: what to multiply nominal times with, seconds of launch, and the error."""

    overlap: float
    memory: float
    linear: float
    attention: float
    launch: float
    error: float


def fit(profile: Profile, path: str) -> Fit:
    """Fit the factors. All-reduces count as the data sheet says: several GPUs' profiles cannot tell them from products.

    Args:
        profile: the measurements.
        path: its file, for messages.

    Raises:
        ConfigError: the profile leaves a factor undetermined, or no factors come near it; names the file.
        CheckpointError, UnsupportedModelError: its model cannot be understood.
    """
    hardware = _machine(profile) if profile.hardware is None else catalogue.hardware(profile.hardware)
    layout = Layout(
        shape=shape_from_hf(profile.model, profile.model_name, path),
        hardware=hardware,
        tp=profile.tp,
        weights=profile.weights,
        kv_dtype=profile.kv_dtype,
    )
    grid = BucketGrid.make(
        max_rows=profile.max_num_seqs,
        max_tokens=profile.max_num_batched_tokens,
        min_rows=profile.min_rows,
        fine=profile.hardware is not None,
    )
    nominal = CostModel(layout, Calibration(compute=1.0, attention=1.0, launch_s=0.0), grid)
    parts = np.array([_parts(nominal, step) for step in profile.steps])
    seconds = np.array([step.seconds for step in profile.steps])
    best = min(
        (_solve(parts, seconds, float(overlap), known=profile.hardware is not None) for overlap in _OVERLAPS),
        key=lambda factors: factors.error,
    )
    _check(best, path)
    fitted = _predict(parts, best)
    hardware, calibration = _calibrated(hardware, best, profile)
    return Fit(
        hardware=hardware,
        known=profile.hardware is not None,
        calibration=calibration,
        min_rows=profile.min_rows,
        steps=tuple(
            FittedStep(
                rows=len(step.counts), tokens=sum(step.counts), kv_tokens=sum(step.lengths), measured=step.seconds, fitted=value
            )
            for step, value in zip(profile.steps, fitted.tolist(), strict=True)
        ),
        mean_error=best.error,
    )


def _machine(profile: Profile) -> Hardware:
    return Hardware(
        name=profile.machine,
        hbm_gb=profile.memory_bytes / 1e9,
        hbm_mib=profile.memory_bytes / 2**20,
        bandwidth_gb_s=1.0,
        bf16_tflops=1.0,
        nvlink_gb_s=1.0,
        margin_gb=0.0,
        price_per_hour=0.0,
    )


def _parts(nominal: CostModel, step: MeasuredStep) -> tuple[float, float, float, float]:
    """Nominal seconds of memory, products with weights, products with keys and values, all-reduces."""
    cost = nominal.cost(np.array(step.counts, np.int64), np.array(step.lengths, np.int64))
    return cost.memory, cost.linear, cost.attention, cost.network


def _solve(parts: Floats, seconds: Floats, overlap: float, *, known: bool) -> _Factors:
    """The best of the fits that begin with memory longer everywhere, arithmetic longer everywhere, and as the prompts say."""
    least = 1.0 if known else 0.0  # nothing is faster than the data sheet
    prompts = parts[:, 1] > np.median(parts[:, 1])
    starts = (np.ones(len(parts), np.bool_), np.zeros(len(parts), np.bool_), ~prompts)
    return min(
        (_alternate(parts, seconds, overlap, least, start) for start in starts),
        key=lambda factors: factors.error,
    )


def _alternate(parts: Floats, seconds: Floats, overlap: float, least: float, longer: npt.NDArray[np.bool_]) -> _Factors:
    """Least squares and a new guess of where memory is the longer one, in turns; the best solution on the way."""
    best: _Factors | None = None
    for _ in range(_ROUNDS):
        solution = _least_squares(parts, seconds, overlap, least, longer)
        if best is None or solution.error < best.error:
            best = solution
        now = solution.memory * parts[:, 0] >= solution.linear * parts[:, 1] + solution.attention * parts[:, 2]
        if (now == longer).all():
            break
        longer = now
    assert best is not None
    return best


def _least_squares(
    parts: Floats, seconds: Floats, overlap: float, least: float, memory_longer: npt.NDArray[np.bool_]
) -> _Factors:
    """Factors for a guess. Attention is at least as slow as products with weights, as a share of its peak."""
    memory = parts[:, 0] * np.where(memory_longer, 1.0, 1.0 - overlap)
    hidden = np.where(memory_longer, 1.0 - overlap, 1.0)
    linear, attention = parts[:, 1] * hidden, parts[:, 2] * hidden
    columns = np.stack((memory, linear + attention, attention, np.ones(len(parts))), axis=1)
    target = seconds - parts[:, 3] - least * (memory + linear + attention)
    above = _non_negative(columns / seconds[:, None], target / seconds)
    factors = _Factors(
        overlap=overlap,
        memory=least + float(above[0]),
        linear=least + float(above[1]),
        attention=least + float(above[1] + above[2]),
        launch=float(above[3]),
        error=0.0,
    )
    error = _predict(parts, factors) / seconds - 1.0
    return _Factors(
        overlap=overlap,
        memory=factors.memory,
        linear=factors.linear,
        attention=factors.attention,
        launch=factors.launch,
        error=float(np.sqrt(np.mean(error**2))),
    )


def _non_negative(columns: Floats, target: Floats) -> Floats:
    """Least squares with solutions of at least 0: the most negative one is fixed at 0 until there is none."""
    active = list(range(columns.shape[1]))
    found = np.zeros(columns.shape[1])
    while active:
        solution = np.linalg.lstsq(columns[:, active], target, rcond=None)[0]
        if (solution >= 0.0).all():
            found[active] = solution
            break
        del active[int(np.argmin(solution))]
    return found


def _predict(parts: Floats, factors: _Factors) -> Floats:
    memory = factors.memory * parts[:, 0]
    compute = factors.linear * parts[:, 1] + factors.attention * parts[:, 2]
    shorter = np.minimum(memory, compute)
    result: Floats = np.maximum(memory, compute) + (1.0 - factors.overlap) * shorter + parts[:, 3] + factors.launch
    return result


def _check(factors: _Factors, path: str) -> None:
    for name, factor in (("memory bandwidth", factors.memory), ("arithmetic rate", factors.linear)):
        if factor <= 0.0:
            raise ConfigError(f"profile: {path}: no step tells the {name}: times do not grow with it", param="profile")
    if factors.error > _LARGEST_ERROR:
        raise ConfigError(
            f"profile: {path}: the best fit is {factors.error:.0%} off in the mean; were the steps measured on this model?",
            param="profile",
        )


def _calibrated(hardware: Hardware, factors: _Factors, profile: Profile) -> tuple[Hardware, Calibration]:
    """Factors as shares of the peak; where no peak is known, the rates that were reached are the machine's."""
    compute, memory = 1.0 / factors.linear, 1.0 / factors.memory
    attention = 1.0 / factors.attention
    if profile.hardware is None:
        hardware = Hardware(
            name=hardware.name,
            hbm_gb=hardware.hbm_gb,
            hbm_mib=hardware.hbm_mib,
            bandwidth_gb_s=hardware.bandwidth_gb_s * memory,
            bf16_tflops=hardware.bf16_tflops * compute,
            nvlink_gb_s=hardware.nvlink_gb_s,
            margin_gb=hardware.margin_gb,
            price_per_hour=hardware.price_per_hour,
        )
        compute, memory, attention = 1.0, 1.0, attention / compute
    return hardware, Calibration(
        compute=compute,
        attention=attention,
        memory=memory,
        overlap=factors.overlap,
        launch_s=factors.launch,
        host_s=profile.host_seconds,
    )
