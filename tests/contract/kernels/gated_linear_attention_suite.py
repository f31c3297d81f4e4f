"""What every implementation of gated_linear_attention must do; a test module subclasses it and names one."""

from __future__ import annotations

from typing import ClassVar

import pytest

from pallas_kernels.parity.cases import MATMUL_DTYPES
from pallas_kernels.parity.recurrence import LINEAR_CASES, check_linear

from .in_turn import in_turn

# Each step with one recurrence, by turns; those of long rows beside short ones with both; other widths and weak decay with one.
CORE = (
    "delta, one new token",
    "plain, decodes",
    "delta, decodes and padding",
    "plain, decodes and padding",
    "plain, few tokens a row",
    "delta, padding rows behind",
    "plain, a new prompt",
    "delta, a chunk exactly",
    "delta, mixed",
    "plain, mixed",
    "delta, rows of one snapshot",
    "plain, no row",
    "delta, drafts",
    "delta, drafts beside a prompt",
    "plain, drafts beside a prompt",
    "odd widths, mixed",
    "slow, mixed",
    "wide, drafts",
)
BY_NAME = {case.name: case for case in LINEAR_CASES}


class GatedLinearAttentionSuite:
    implementation: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...]] = MATMUL_DTYPES

    @pytest.mark.parametrize(
        ("dtype", "case"),
        [
            *in_turn(
                [BY_NAME[name] for name in CORE],
                ("float32", "bfloat16"),
                every=MATMUL_DTYPES,
                everywhere=("delta, mixed", "plain, drafts beside a prompt"),
            ),
            *(
                pytest.param(dtype, case, id=f"{dtype}-{case.name}", marks=pytest.mark.extended)
                for dtype in MATMUL_DTYPES
                for case in LINEAR_CASES
                if case.name not in CORE
            ),
        ],
    )
    def test_case(self, dtype, case):
        result = check_linear(case, dtype, self.implementation)
        assert result.verdict == ("pass" if dtype in self.dtypes else "unsupported"), result
