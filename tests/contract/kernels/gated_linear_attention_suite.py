"""What every implementation of gated_linear_attention must do; a test module subclasses it and names one."""

from __future__ import annotations

from typing import ClassVar

import pytest

from pallas_kernels.parity.cases import MATMUL_DTYPES
from pallas_kernels.parity.recurrence import LINEAR_CASES, check_linear

from .in_turn import in_turn

# So that a step is in another dtype with the one recurrence than with the other.
DELTA = [case for case in LINEAR_CASES if case.shape.options.delta]
PLAIN = [case for case in LINEAR_CASES if not case.shape.options.delta]


class GatedLinearAttentionSuite:
    implementation: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...]] = MATMUL_DTYPES

    @pytest.mark.parametrize(
        ("dtype", "case"),
        [
            *in_turn(DELTA, ("float32", "bfloat16"), every=MATMUL_DTYPES, everywhere=("delta, mixed",)),
            *in_turn(PLAIN, ("bfloat16", "float32"), every=MATMUL_DTYPES, everywhere=("plain, drafts beside a prompt",)),
        ],
    )
    def test_case(self, dtype, case):
        result = check_linear(case, dtype, self.implementation)
        assert result.verdict == ("pass" if dtype in self.dtypes else "unsupported"), result
