"""round_rows under the gate: steps as the reference has them, and numbers rounded to the nearest of E4M3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.parity.gate import Result, errors, guarded
from pallas_kernels.registry import Target
from pallas_kernels.round_rows import (
    LARGEST,
    SMALLEST_SCALE,
    Gate,
    Norm,
    Rounded,
    reference,
    round_gated,
    round_normed,
    round_rows,
)

HALF_ULP, HALF_SMALLEST = 2.0**-4, 2.0**-10  # of E4M3: relative, and of a number without a leading 1, in steps
FLOAT32 = 4e-6  # relative error of sums and functions in float32
COSINE = 0.999
NORM = Norm(eps=1e-5, offset=1.0)


@dataclass(frozen=True, slots=True)
class RoundCase:
    """A call of one of the three operations; a dtype completes it.

    Attributes:
        name: what tables call it.
        made_by: what makes the rows: a norm, of a sum or alone, or a gate.
        rows, shards, width: T, s, I; a norm has no s.
        magnitude: of the numbers.
    """

    name: str
    made_by: Literal["nothing", "sum and norm", "norm", "gate"]
    rows: int
    width: int
    shards: int = 1
    magnitude: float = 1.0
    tiny: bool = True

    def numbers(self, dtype: str, width: int) -> np.ndarray:
        """[T, s, width]; the second row is 0. The same ones every time."""
        rng = np.random.default_rng(self.rows + width)
        numbers = rng.standard_normal((self.rows, self.shards, width)) * self.magnitude
        numbers[1:2] = 0
        return numbers.astype(jnp.dtype(dtype))


ROUND_CASES = (
    RoundCase("rows", "nothing", 3, 512),
    RoundCase("rows of two shards", "nothing", 2, 256, shards=2),
    RoundCase("tiny numbers", "nothing", 4, 768, magnitude=1e-30),
    RoundCase("large numbers", "nothing", 4, 1024, magnitude=1e4),
    RoundCase("many rows", "nothing", 67, 256, tiny=False),
    RoundCase("one row of odd width", "nothing", 1, 37, tiny=False),
    RoundCase("a sum and its norm", "sum and norm", 3, 512),
    RoundCase("a norm", "norm", 5, 256),
    RoundCase("wide norms", "sum and norm", 17, 8192, tiny=False),
    RoundCase("a gate", "gate", 3, 512),
    RoundCase("a gate of two shards", "gate", 2, 256, shards=2),
    RoundCase("wide gates", "gate", 16, 3584, tiny=False),
)


def check_round(case: RoundCase, dtype: str, implementation: str, target: Target | None = None) -> Result:
    start = partial(Result, "round_rows", implementation, case.name, dtype)
    options: dict[str, Any] = {"implementation": implementation, "target": target}
    match case.made_by:
        case "nothing":
            return guarded(start, lambda: _rows(start, case, dtype, options))
        case "gate":
            return guarded(start, lambda: _gated(start, case, dtype, options))
        case _:
            return guarded(start, lambda: _normed(start, case, dtype, options))


def _rows(start: Callable[..., Result], case: RoundCase, dtype: str, options: dict[str, Any]) -> Result:
    x = case.numbers(dtype, case.width)
    got = jax.jit(partial(round_rows, **options))(x)
    result = _judge(start, got, x.astype(np.float64), "float32")
    if result.verdict != "pass":
        return result
    x[-1, -1, 7] = np.nan
    broken = jax.jit(partial(round_rows, **options))(x)
    if not np.isnan(_wide(broken)[-1, -1, 7]):
        return start("FAIL", reason="a number that is NaN is none afterwards")
    if not np.array_equal(_wide(broken)[:-1], _wide(got)[:-1]):
        return start("FAIL", reason="a NaN changes other rows")
    return result


def _normed(start: Callable[..., Result], case: RoundCase, dtype: str, options: dict[str, Any]) -> Result:
    x, scale = case.numbers(dtype, case.width)[:, 0], case.numbers(dtype, case.width)[0, 0]
    added = x[::-1].copy() if case.made_by == "sum and norm" else None
    total, got = jax.jit(partial(round_normed, norm=NORM, **options))(x, added, scale)
    summed, rows = reference.normed(x, added, scale, NORM.eps, NORM.offset)
    if not np.array_equal(total, summed):
        return start("FAIL", reason="the sum is another")
    return _judge(start, got, rows, dtype)


def _gated(start: Callable[..., Result], case: RoundCase, dtype: str, options: dict[str, Any]) -> Result:
    sums, rng = case.numbers(dtype, 2 * case.width), np.random.default_rng(0)
    steps, scales = (rng.uniform(0.5, 2, shape).astype(np.float32) for shape in (case.rows, sums.shape[1:]))
    gate = Gate(jnp.asarray(steps), jnp.asarray(scales))
    run = partial(round_gated, activation=_silu, dtype=jnp.dtype(dtype), **options)
    rows = reference.gated(sums, steps, scales, lambda gate, up: gate / (1 + np.exp(-gate)) * up)
    return _judge(start, jax.jit(run)(sums, gate), rows, dtype)


def _silu(gate: jax.Array, up: jax.Array) -> jax.Array:
    return jax.nn.silu(gate) * up


def _wide(rounded: Rounded) -> np.ndarray:
    """The values of the rows that there are; those behind them may be anything."""
    return np.asarray(rounded.values, np.float32)[: rounded.shape[0]]


def _judge(start: Callable[..., Result], got: Rounded, rows: np.ndarray, dtype: str) -> Result:
    steps, ulp = np.asarray(got.steps, np.float64), float(jnp.finfo(dtype).eps)  # type: ignore[no-untyped-call]
    numbers = _wide(got).astype(np.float64) * steps[..., None]
    if not np.isfinite(numbers).all():
        return start("FAIL", reason="the output is not finite")
    figures = errors(numbers, rows)
    largest = np.abs(rows).max(axis=-1)
    if (np.abs(steps * LARGEST - largest) > (ulp + FLOAT32) * largest + LARGEST * SMALLEST_SCALE).any():
        return start("FAIL", **figures, reason="a step is not the largest magnitude over 448")
    if (np.abs(numbers - rows) > (HALF_ULP + ulp + FLOAT32) * np.abs(rows) + HALF_SMALLEST * steps[..., None]).any():
        return start("FAIL", **figures, reason="a number is not rounded to the nearest")
    return start("pass" if figures["cosine"] > COSINE else "FAIL", **figures)
