"""What every implementation of rotate_and_write must do; a test module subclasses it and names one."""

from __future__ import annotations

from typing import ClassVar

import pytest

from pallas_kernels.parity.cases import MATMUL_DTYPES, ROTATE_CASES
from pallas_kernels.parity.gate import check_rotate

from .in_turn import in_turn


class RotateAndWriteSuite:
    implementation: ClassVar[str]

    @pytest.mark.parametrize(("dtype", "case"), in_turn(ROTATE_CASES, MATMUL_DTYPES, everywhere=("any slots", "other source")))
    def test_case(self, dtype, case):
        result = check_rotate(case, dtype, self.implementation)
        assert result.verdict == "pass", result
