"""What every implementation of kv_write must do; a test module subclasses it and names one."""

from __future__ import annotations

from typing import ClassVar

import pytest

from pallas_kernels.parity.cases import MATMUL_DTYPES, QUANTIZED, WRITE_CASES
from pallas_kernels.parity.gate import check_write

from .in_turn import in_turn


class KvWriteSuite:
    implementation: ClassVar[str]

    @pytest.mark.parametrize(
        ("dtype", "case"),
        [*in_turn(WRITE_CASES, MATMUL_DTYPES, everywhere=("any slots",)), *in_turn(WRITE_CASES, tuple(QUANTIZED))],
    )
    def test_case(self, dtype, case):
        result = check_write(case, dtype, self.implementation)
        assert result.verdict == "pass", result
