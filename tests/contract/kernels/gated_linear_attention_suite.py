"""What every implementation of gated_linear_attention must do; a test module subclasses it and names one."""

from __future__ import annotations

from typing import ClassVar

import pytest

from pallas_kernels.parity.cases import MATMUL_DTYPES
from pallas_kernels.parity.recurrence import LINEAR_CASES, check_linear


class GatedLinearAttentionSuite:
    implementation: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...]] = MATMUL_DTYPES

    @pytest.mark.parametrize("case", LINEAR_CASES, ids=lambda case: case.name)
    @pytest.mark.parametrize("dtype", MATMUL_DTYPES)
    def test_case(self, dtype, case):
        result = check_linear(case, dtype, self.implementation)
        assert result.verdict == ("pass" if dtype in self.dtypes else "unsupported"), result
