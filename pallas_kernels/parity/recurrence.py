"""gated_linear_attention and causal_conv1d under the gate; tokens of no row, and states that no row reads, are NaN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.causal_conv1d import causal_conv1d
from pallas_kernels.causal_conv1d import reference as conv_reference
from pallas_kernels.gated_linear_attention import LinearOptions, gated_linear_attention
from pallas_kernels.gated_linear_attention import reference as linear_reference
from pallas_kernels.gated_linear_attention.mosaic_gpu_support import SHORT
from pallas_kernels.parity.gate import Result, errors, guarded
from pallas_kernels.parity.states import PLACES, STEPS, Step, table
from pallas_kernels.registry import Target

LAYERS, LAYER = 3, 1  # what is written behind a layer's places is seen in the next one
LINEAR_TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}  # of a result, relative where it is above 1
CONV_TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2, "float16": 4e-3}
DELTA, PLAIN = LinearOptions(delta=True, scale=0.25, l2_norm=True), LinearOptions(delta=False)


@dataclass(frozen=True, slots=True)
class LinearShape:
    """K, H, D and V of a call of gated_linear_attention, its recurrence, and how much states fade at most."""

    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    options: LinearOptions
    strongest: float = 2.0


@dataclass(frozen=True, slots=True)
class LinearCase:
    """A call of gated_linear_attention; a dtype of MATMUL_DTYPES completes it."""

    name: str
    step: Step
    shape: LinearShape
    tiny: bool = False

    def arrays(self, dtype: str) -> tuple[Any, ...]:
        """The arguments; the same ones every time."""
        rng, rows, kind, shape = np.random.default_rng(0), self.step.rows(), jnp.dtype(dtype), self.shape
        real = sum(self.step.lengths)
        tokens = real + self.step.padding
        q, k = (rng.standard_normal((tokens, shape.key_heads, shape.key_dim)) for _ in range(2))
        v = rng.standard_normal((tokens, shape.heads, shape.value_dim))
        decay = -shape.strongest * rng.random((tokens, shape.heads))
        beta = rng.random((tokens, shape.heads))
        for array in (q, k, v, decay, beta):
            array[real:] = np.nan
        if not shape.options.l2_norm:
            q, k = q / shape.key_dim**0.5, k / shape.key_dim**0.5
        states = table(rng, (LAYERS, PLACES, shape.heads, shape.key_dim, shape.value_dim), np.dtype(np.float32), rows)
        wide = (decay.astype(np.float32), beta.astype(np.float32), states)
        return *(array.astype(kind) for array in (q, k, v)), *wide, rows


@dataclass(frozen=True, slots=True)
class ConvCase:
    """A call of causal_conv1d; a dtype of MATMUL_DTYPES completes it. C and W, and whether there is a bias, and SiLU."""

    name: str
    step: Step
    channels: int
    width: int
    biased: bool
    silu: bool
    tiny: bool = False

    def arrays(self, dtype: str) -> tuple[Any, ...]:
        """The arguments; the same ones every time."""
        rng, rows, kind = np.random.default_rng(0), self.step.rows(), jnp.dtype(dtype)
        real = sum(self.step.lengths)
        x = rng.standard_normal((real + self.step.padding, self.channels)).astype(kind)
        x[real:] = np.nan
        weight = rng.standard_normal((self.width, self.channels)).astype(kind)
        bias = rng.standard_normal(self.channels).astype(kind) if self.biased else None
        return x, weight, bias, table(rng, (LAYERS, PLACES, self.width - 1, self.channels), kind, rows), rows


_STEPS = {step.name: step for step in STEPS}
_SHAPES = {
    "delta": LinearShape(2, 4, 48, 32, DELTA),
    "plain": LinearShape(1, 4, 16, 64, PLAIN),
    "odd widths": LinearShape(1, 1, 8, 24, DELTA, strongest=40.0),
    "slow": LinearShape(2, 2, 32, 16, PLAIN, strongest=0.01),
    "as Qwen3-Next's": LinearShape(2, 4, 128, 128, DELTA),
    "as Granite 4's": LinearShape(1, 4, 128, 64, PLAIN),
    "wide": LinearShape(1, 1, 256, 256, DELTA),
}
_LINEAR = (
    *((shape, step.name) for shape in ("delta", "plain") for step in STEPS),
    *(("odd widths", name) for name in ("decodes and padding", "mixed", "drafts")),
    *(("slow", name) for name in ("few tokens a row", "mixed", "drafts beside a prompt")),
    *((shape, "drafts") for shape in ("as Qwen3-Next's", "as Granite 4's", "wide")),
)
LINEAR_CASES = tuple(
    LinearCase(f"{shape}, {name}", _STEPS[name], _SHAPES[shape], tiny=_STEPS[name].tiny(SHORT)) for shape, name in _LINEAR
)
CONV_CASES = tuple(
    ConvCase(f"{channels} channels, {width} taps, {step.name}", step, channels, width, biased, silu, tiny=step.tiny())
    for channels, width, biased, silu, steps in (
        (512, 4, False, True, STEPS),
        (128, 3, True, False, STEPS[1::2]),
        (384, 2, True, True, STEPS[-2:]),
        (24, 4, False, False, STEPS[-2:]),
    )
    for step in steps
)


def check_linear(case: LinearCase, dtype: str, implementation: str, target: Target | None = None) -> Result:
    start = partial(Result, "gated_linear_attention", implementation, case.name, dtype)
    return guarded(start, lambda: _linear(start, case, dtype, implementation, target))


def check_conv(case: ConvCase, dtype: str, implementation: str, target: Target | None = None) -> Result:
    start = partial(Result, "causal_conv1d", implementation, case.name, dtype)
    return guarded(start, lambda: _conv(start, case, dtype, implementation, target))


def _linear(start: Callable[..., Result], case: LinearCase, dtype: str, implementation: str, target: Target | None) -> Result:
    *given, states, rows = case.arrays(dtype)
    options: dict[str, Any] = {"layer": LAYER, "options": case.shape.options}
    call = jax.jit(partial(gated_linear_attention, implementation=implementation, target=target, **options), donate_argnums=5)
    # A float32 matrix product is one only where asked for: a GPU's default is TensorFloat-32.
    with jax.default_matmul_precision("highest"):
        got, left = (np.asarray(array) for array in call(*given, jnp.array(states), rows))
    want, kept = linear_reference.gated_linear_attention(*case.arrays(dtype), **options)
    if got.dtype != jnp.dtype(dtype) or left.dtype != np.float32:
        return start("FAIL", reason=f"the output is {got.dtype.name} and the states {left.dtype.name}")
    wrong = _differs(left.astype(np.float64), kept, LINEAR_TOLERANCE["float32"])
    if wrong is not None:
        return start("FAIL", reason=f"states: {wrong}")
    return _judge(start, case.step, got, want, LINEAR_TOLERANCE[dtype])


def _conv(start: Callable[..., Result], case: ConvCase, dtype: str, implementation: str, target: Target | None) -> Result:
    *given, states, rows = case.arrays(dtype)
    options: dict[str, Any] = {"layer": LAYER, "silu": case.silu}
    call = jax.jit(partial(causal_conv1d, implementation=implementation, target=target, **options), donate_argnums=3)
    got, left = (np.asarray(array) for array in call(*given, jnp.array(states), rows))
    want, kept = conv_reference.causal_conv1d(*case.arrays(dtype), **options)
    if got.dtype != jnp.dtype(dtype) or left.dtype != jnp.dtype(dtype):
        return start("FAIL", reason=f"the output is {got.dtype.name} and the states {left.dtype.name}")
    if _differs(left.astype(np.float64), kept.astype(np.float64), 0.0) is not None:
        return start("FAIL", reason="states must be equal, number by number")
    return _judge(start, case.step, got, want, CONV_TOLERANCE[dtype])


def _judge(start: Callable[..., Result], step: Step, got: np.ndarray, want: np.ndarray, tolerance: float) -> Result:
    """Of the tokens of rows; those behind them may be anything."""
    real = sum(step.lengths)
    mine, theirs = got[:real].astype(np.float64), want[:real]
    wrong = _differs(mine, theirs, tolerance)
    if wrong is not None and not np.isfinite(mine).all():
        return start("FAIL", reason=wrong)
    return start("pass" if wrong is None else "FAIL", **errors(mine, theirs), reason=wrong or "")


def _differs(got: np.ndarray, want: np.ndarray, tolerance: float) -> str | None:
    """Say how, or None: NaN is where it was, and errors are within the tolerance, relative to what is above 1."""
    if not np.array_equal(np.isnan(got), np.isnan(want)):
        return "NaN is not where it must be"
    known = ~np.isnan(want)
    if (np.abs(got[known] - want[known]) > tolerance * (1 + np.abs(want[known]))).any():
        return f"errors must be below {tolerance:g} of 1 and the number"
    return None
