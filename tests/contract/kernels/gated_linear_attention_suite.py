"""What every implementation of gated_linear_attention must do; a test module subclasses it and names one."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
import pytest

from pallas_kernels.gated_linear_attention import LinearOptions, gated_linear_attention, reference
from pallas_kernels.registry import KernelError

from .state_cases import DTYPES, PLACES, STEPS, Step, table

TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}
DELTA, PLAIN = LinearOptions(delta=True, scale=0.25, l2_norm=True), LinearOptions(delta=False)
LAYER = 1


class Shape(NamedTuple):
    """K, H, D and V, and the recurrence."""

    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    options: LinearOptions
    strongest: float = 2.0


SHAPES = (
    Shape(2, 4, 16, 16, DELTA),
    Shape(1, 1, 8, 24, DELTA, strongest=40.0),
    Shape(1, 4, 16, 8, PLAIN),
    Shape(2, 2, 32, 16, PLAIN, strongest=0.01),
)
CASES = (*((shape, "float32") for shape in SHAPES), (SHAPES[0], "bfloat16"), (SHAPES[2], "bfloat16"), (SHAPES[0], "float16"))


def arrays(step: Step, shape: Shape, dtype: str) -> tuple[Any, ...]:
    """The arguments; tokens of no row, and states that no row reads, are NaN."""
    rng, rows, kind = np.random.default_rng(0), step.rows(), DTYPES[dtype]
    real = sum(step.lengths)
    tokens = real + step.padding
    q, k = (rng.standard_normal((tokens, shape.key_heads, shape.key_dim)) for _ in range(2))
    v = rng.standard_normal((tokens, shape.heads, shape.value_dim))
    decay = -shape.strongest * rng.random((tokens, shape.heads))
    beta = rng.random((tokens, shape.heads))
    for array in (q, k, v, decay, beta):
        array[real:] = np.nan
    if not shape.options.l2_norm:
        q, k = q / shape.key_dim**0.5, k / shape.key_dim**0.5
    states = table(rng, (2, PLACES, shape.heads, shape.key_dim, shape.value_dim), np.dtype(np.float32), rows)
    wide = (decay.astype(np.float32), beta.astype(np.float32), states)
    return *(array.astype(kind) for array in (q, k, v)), *wide, rows


class GatedLinearAttentionSuite:
    implementation: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...]] = tuple(DTYPES)

    @pytest.mark.parametrize(("shape", "dtype"), CASES)
    @pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
    def test_case(self, step: Step, shape: Shape, dtype: str) -> None:
        given, real = arrays(step, shape, dtype), sum(step.lengths)
        call = jax.jit(partial(gated_linear_attention, layer=LAYER, options=shape.options, implementation=self.implementation))
        if dtype not in self.dtypes:
            with pytest.raises(KernelError, match=f"not {dtype}"):
                call(*given)
            return
        got, left = (np.asarray(array) for array in call(*given))
        want, kept = reference.gated_linear_attention(*given, layer=LAYER, options=shape.options)
        assert got.dtype == DTYPES[dtype]
        assert left.dtype == np.float32
        np.testing.assert_allclose(got[:real].astype(np.float64), want[:real], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        np.testing.assert_allclose(left, kept, rtol=TOLERANCE["float32"], atol=TOLERANCE["float32"])
