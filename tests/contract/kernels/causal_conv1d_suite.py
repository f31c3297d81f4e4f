"""What every implementation of causal_conv1d must do; a test module subclasses it and names one."""

from __future__ import annotations

from typing import ClassVar

import pytest

from pallas_kernels.parity.cases import MATMUL_DTYPES
from pallas_kernels.parity.recurrence import CONV_CASES, check_conv

from .in_turn import in_turn

EVERYWHERE = ("512 channels, 4 taps, mixed", "512 channels, 4 taps, drafts")


class CausalConv1dSuite:
    implementation: ClassVar[str]

    @pytest.mark.parametrize(("dtype", "case"), in_turn(CONV_CASES, MATMUL_DTYPES, everywhere=EVERYWHERE))
    def test_case(self, dtype, case):
        result = check_conv(case, dtype, self.implementation)
        assert result.verdict == "pass", result
