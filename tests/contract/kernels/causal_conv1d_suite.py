"""What every implementation of causal_conv1d must do; a test module subclasses it and names one."""

from __future__ import annotations

from typing import ClassVar

import pytest

from pallas_kernels.parity.cases import MATMUL_DTYPES
from pallas_kernels.parity.recurrence import CONV_CASES, check_conv


class CausalConv1dSuite:
    implementation: ClassVar[str]

    @pytest.mark.parametrize("case", CONV_CASES, ids=lambda case: case.name)
    @pytest.mark.parametrize("dtype", MATMUL_DTYPES)
    def test_case(self, dtype, case):
        result = check_conv(case, dtype, self.implementation)
        assert result.verdict == "pass", result
