"""What every implementation of round_rows must do; a test module subclasses it and names one."""

from __future__ import annotations

from typing import ClassVar

import pytest

from pallas_kernels.parity.cases import MATMUL_DTYPES
from pallas_kernels.parity.rounding import ROUND_CASES, check_round

from .in_turn import in_turn

EVERYWHERE = ("rows", "a sum and its norm", "a gate")


class RoundRowsSuite:
    implementation: ClassVar[str]

    @pytest.mark.parametrize(("dtype", "case"), in_turn(ROUND_CASES, MATMUL_DTYPES, everywhere=EVERYWHERE))
    def test_case(self, dtype, case):
        result = check_round(case, dtype, self.implementation)
        assert result.verdict == "pass", result
