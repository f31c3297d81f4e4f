"""What every implementation of rotate_and_write must do; a test module subclasses it and names one."""

from __future__ import annotations

from typing import ClassVar

import pytest

from pallas_kernels.parity.cases import MATMUL_DTYPES, ROTATE_CASES
from pallas_kernels.parity.gate import check_rotate


class RotateAndWriteSuite:
    implementation: ClassVar[str]

    @pytest.mark.parametrize("case", ROTATE_CASES, ids=lambda case: case.name)
    @pytest.mark.parametrize("dtype", MATMUL_DTYPES)
    def test_case(self, dtype, case):
        result = check_rotate(case, dtype, self.implementation)
        assert result.verdict == "pass", result
