"""What every implementation of causal_conv1d must do; a test module subclasses it and names one."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import jax
import numpy as np
import pytest

from pallas_kernels.causal_conv1d import causal_conv1d, reference

from .state_cases import DTYPES, PLACES, STEPS, Step, table

TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2, "float16": 4e-3}
LAYER = 1
CASES = ((4, False, True, "float32"), (3, True, False, "float32"), (4, True, True, "bfloat16"), (3, False, False, "float16"))


class CausalConv1dSuite:
    implementation: ClassVar[str]

    @pytest.mark.parametrize(("width", "biased", "silu", "dtype"), CASES)
    @pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
    def test_case(self, step: Step, width: int, biased: bool, silu: bool, dtype: str) -> None:
        rng, rows, kind, channels = np.random.default_rng(0), step.rows(), DTYPES[dtype], 24
        real = sum(step.lengths)
        x = rng.standard_normal((real + step.padding, channels)).astype(kind)
        x[real:] = np.nan
        weight = rng.standard_normal((width, channels)).astype(kind)
        bias = rng.standard_normal(channels).astype(kind) if biased else None
        states = table(rng, (2, PLACES, width - 1, channels), kind, rows)
        call = jax.jit(partial(causal_conv1d, layer=LAYER, silu=silu, implementation=self.implementation))
        got, left = (np.asarray(array) for array in call(x, weight, bias, states, rows))
        want, kept = reference.causal_conv1d(x, weight, bias, states, rows, layer=LAYER, silu=silu)
        assert got.dtype == left.dtype == kind
        np.testing.assert_allclose(got[:real].astype(np.float64), want[:real], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        np.testing.assert_array_equal(left.astype(np.float32), kept.astype(np.float32))
