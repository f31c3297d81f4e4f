"""What every implementation of rotate_write_attend must do; a test module subclasses it and names one."""

from __future__ import annotations

from typing import ClassVar

import pytest

from pallas_kernels.parity.cases import MATMUL_DTYPES, ROTATE_ATTEND_CASES
from pallas_kernels.parity.gate import check_rotate_attend

from .in_turn import in_turn


class RotateWriteAttendSuite:
    implementation: ClassVar[str]

    @pytest.mark.parametrize(("dtype", "case"), in_turn(ROTATE_ATTEND_CASES, MATMUL_DTYPES, everywhere=("everything",)))
    def test_case(self, dtype, case):
        result = check_rotate_attend(case, dtype, self.implementation)
        assert result.verdict == "pass", result
