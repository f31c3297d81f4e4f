"""What every implementation of rotate_write_attend must do; a test module subclasses it and names one."""

from __future__ import annotations

from typing import ClassVar

import pytest

from pallas_kernels.parity.cases import MATMUL_DTYPES, ROTATE_ATTEND_CASES
from pallas_kernels.parity.gate import check_rotate_attend


class RotateWriteAttendSuite:
    implementation: ClassVar[str]

    @pytest.mark.parametrize("case", ROTATE_ATTEND_CASES, ids=lambda case: case.name)
    @pytest.mark.parametrize("dtype", MATMUL_DTYPES)
    def test_case(self, dtype, case):
        result = check_rotate_attend(case, dtype, self.implementation)
        assert result.verdict == "pass", result
