"""What every implementation of round_rows must do; a test module subclasses it and names one."""

from __future__ import annotations

from typing import ClassVar

import pytest

from pallas_kernels.parity.cases import MATMUL_DTYPES
from pallas_kernels.parity.rounding import ROUND_CASES, check_round


class RoundRowsSuite:
    implementation: ClassVar[str]

    @pytest.mark.parametrize("case", ROUND_CASES, ids=lambda case: case.name)
    @pytest.mark.parametrize("dtype", MATMUL_DTYPES)
    def test_case(self, dtype, case):
        result = check_round(case, dtype, self.implementation)
        assert result.verdict == "pass", result
