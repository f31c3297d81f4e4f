"""What every implementation of grouped_matmul must do; a test module subclasses it and names one."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, ClassVar

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.grouped_matmul import check_inputs, grouped_matmul, reference
from pallas_kernels.parity.cases import GROUPED_CASES, MATMUL_DTYPES, GroupedCase
from pallas_kernels.parity.gate import TOLERANCE, check_grouped, packed_weights

from .in_turn import in_turn

EVERYWHERE = ("result of the dtype", "int8: result of the dtype", "w8a8: mixed", "int4: mixed")


@cache
def compiled(implementation: str) -> Any:
    """One jitted function, so that tests with equal shapes share a compilation."""
    return jax.jit(partial(grouped_matmul, implementation=implementation))


class GroupedMatmulSuite:
    implementation: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...]] = MATMUL_DTYPES
    any_dtype: ClassVar[tuple[str, ...]] = ()
    """Schemes whose rows may be of every dtype."""
    words: ClassVar[bool] = True

    @pytest.mark.parametrize(
        ("dtype", "case"), in_turn(GROUPED_CASES, ("float32", "bfloat16"), every=MATMUL_DTYPES, everywhere=EVERYWHERE)
    )
    def test_case(self, dtype, case):
        result = check_grouped(case, dtype, self.implementation)
        supported = (dtype in self.dtypes or case.scheme in self.any_dtype) and (self.words or not case.words)
        assert result.verdict == ("pass" if supported else "unsupported"), result

    def test_random_groups(self):
        rng = np.random.default_rng(0)
        rows, groups = 48, 5
        x = rng.standard_normal((rows, 16)).astype(np.float32)
        weights = rng.standard_normal((groups, 16, 24)).astype(np.float32) * 0.1

        @settings(max_examples=25, deadline=None, derandomize=True)
        @given(st.lists(st.integers(0, rows), min_size=groups - 1, max_size=groups - 1), st.integers(0, rows))
        def run(borders: list[int], owned: int) -> None:
            sizes = np.diff([0, *sorted(min(border, owned) for border in borders), owned]).astype(np.int32)
            check_inputs(rows, sizes)
            mine = np.where(np.arange(rows)[:, None] < owned, x, np.nan)
            got = np.asarray(compiled(self.implementation)(mine, weights, sizes))
            want = reference.grouped_matmul(mine, weights, sizes)
            np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=TOLERANCE["float32"].max_abs)

        run()

    @pytest.mark.parametrize("scheme", ["none", "int8", "w8a8", "fp8_weight", "int4"])
    def test_neighbours_do_not_matter(self, scheme):
        """A row's result is the same, bit by bit, whatever the other rows hold: nothing of them leaks over a group's border."""
        rng = np.random.default_rng(1)
        sizes = np.asarray([5, 9, 0, 11], np.int32)
        x = rng.standard_normal((30, 64)).astype(np.float32)
        weights = rng.standard_normal((4, 64, 24)).astype(np.float32)
        alone = np.where(((np.arange(30) >= 5) & (np.arange(30) < 14))[:, None], x, np.nan)
        others = np.where((np.arange(4) == 1)[:, None, None], weights, 7.0 if scheme != "none" else np.nan)
        case = GroupedCase("", (), scheme=scheme)
        call = compiled(self.implementation)
        np.testing.assert_array_equal(
            np.asarray(call(alone, packed_weights(case, others), sizes))[5:14],
            np.asarray(call(x, packed_weights(case, weights), sizes))[5:14],
        )
