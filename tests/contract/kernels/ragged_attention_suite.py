"""What every implementation of ragged_attention must do; a test module subclasses it and names one."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels.ragged_attention import ragged_attention, reference
from pallas_kernels.ragged_paged_attention import AttentionOptions
from pallas_kernels.registry import KernelError

from .in_turn import in_turn

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}


class RaggedCase(NamedTuple):
    """A call: tokens of each row, and those of none behind them."""

    name: str
    rows: tuple[int, ...]
    padding: int = 0
    heads: tuple[int, int] = (4, 4)
    head_dim: int = 16
    window: int | None = None
    soft_cap: float | None = None
    magnitude: float = 1.0

    @property
    def options(self) -> AttentionOptions:
        return AttentionOptions(self.head_dim**-0.5, self.window, self.soft_cap)

    def arrays(self, dtype: str) -> tuple[Any, ...]:
        """q, k, v and query_start; tokens of no row are NaN."""
        rng, real = np.random.default_rng(0), sum(self.rows)
        sizes = [(real + self.padding, count, self.head_dim) for count in (self.heads[0], *self.heads[1:] * 2)]
        arrays = [(self.magnitude * rng.standard_normal(size)).astype(DTYPES[dtype]) for size in sizes]
        for array in arrays:
            array[real:] = np.nan
        return (*arrays, np.cumsum([0, *self.rows], dtype=np.int32))


CASES = (
    RaggedCase("one token", (1,)),
    RaggedCase("rows and padding", (3, 0, 17, 1, 0), padding=7),
    RaggedCase("more than a block", (100, 150, 31), padding=8, head_dim=8),
    RaggedCase("a block and one token", (129,), head_dim=8),
    RaggedCase("grouped heads", (5, 40), heads=(6, 2), padding=3),
    RaggedCase("long rows", (700, 1, 600), heads=(2, 1), head_dim=24, padding=3),
    RaggedCase("long rows and windows", (1300,), heads=(2, 2), head_dim=8, window=600),
    RaggedCase("windows", (40, 3, 150), window=9, head_dim=8),
    RaggedCase("a window of one", (4, 9), window=1),
    RaggedCase("cap and huge scores", (5, 20), soft_cap=5.0, magnitude=30.0, padding=2),
    RaggedCase("huge scores", (5, 20), magnitude=100.0),
    RaggedCase("no row", (0, 0), padding=5),
)


class RaggedAttentionSuite:
    implementation: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...]] = tuple(DTYPES)

    @pytest.mark.parametrize(
        ("dtype", "case"), in_turn(CASES, ("float32", "bfloat16"), every=tuple(DTYPES), everywhere=("grouped heads",))
    )
    def test_case(self, dtype: str, case: RaggedCase) -> None:
        arrays = case.arrays(dtype)
        call = jax.jit(partial(ragged_attention, options=case.options, implementation=self.implementation))
        if dtype not in self.dtypes:
            with pytest.raises(KernelError, match=f"not {dtype}"):
                call(*arrays)
            return
        got = np.asarray(call(*arrays))
        assert got.dtype == DTYPES[dtype]
        want = reference.ragged_attention(*arrays, options=case.options)
        scale = max(1.0, case.magnitude)
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=scale * TOLERANCE[dtype])
