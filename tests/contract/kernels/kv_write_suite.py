"""What every implementation of kv_write must do; a test module subclasses it and names one."""

from __future__ import annotations

from typing import ClassVar

import pytest

from pallas_kernels.parity.cases import DTYPES, WRITE_CASES
from pallas_kernels.parity.gate import check_write


class KvWriteSuite:
    implementation: ClassVar[str]

    @pytest.mark.parametrize("case", WRITE_CASES, ids=lambda case: case.name)
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_case(self, dtype, case):
        result = check_write(case, dtype, self.implementation)
        assert result.verdict == "pass", result
