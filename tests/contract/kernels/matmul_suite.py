"""What every implementation of matmul must do; a test module subclasses it and names one."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from pallas_kernels.matmul import CodePanels, Panels, Rows, matmul, pack
from pallas_kernels.parity.cases import MATMUL_CASES, MATMUL_DTYPES
from pallas_kernels.parity.gate import check_matmul
from pallas_kernels.quantization import SCHEMES

from .in_turn import in_turn

EVERYWHERE = ("plain", "odd", "rows: odd", "int8: less than a word", "fp8: odd, more than a panel", "words: codes")


@cache
def compiled(implementation: str) -> Any:
    """One jitted function, so that tests with equal shapes share a compilation."""
    return jax.jit(partial(matmul, implementation=implementation))


class MatmulSuite:
    implementation: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...]] = MATMUL_DTYPES
    layouts: ClassVar[tuple[str, ...]] = ("plain", "panels", "rows", "words")
    any_dtype: ClassVar[tuple[str, ...]] = ()
    """Schemes whose rows may be of every dtype."""

    @pytest.mark.parametrize(
        ("dtype", "case"), in_turn(MATMUL_CASES, ("float32", "bfloat16"), every=MATMUL_DTYPES, everywhere=EVERYWHERE)
    )
    def test_case(self, dtype, case):
        result = check_matmul(case, dtype, self.implementation)
        supported = (dtype in self.dtypes or case.scheme in self.any_dtype) and case.layout in self.layouts
        assert result.verdict == ("pass" if supported else "unsupported"), result

    @pytest.mark.parametrize(
        ("layout", "scheme"),
        [
            ("panels", "none"),
            ("rows", "none"),
            ("panels", "int8"),
            ("panels", "w8a8"),
            ("panels", "fp8_weight"),
            ("code panels", "int4"),
        ],
    )
    def test_other_rows_do_not_matter(self, layout, scheme):
        """A row's result is the same, bit by bit, whatever the other rows hold."""
        rng = np.random.default_rng(1)
        inputs = 64 if scheme == "int4" else 45
        x = rng.standard_normal((11, inputs)).astype(np.float32)
        alone = np.where((np.arange(11) == 6)[:, None], x, np.nan)
        plain = rng.standard_normal((70, inputs) if layout == "rows" else (inputs, 70)).astype(np.float32)
        columns = CodePanels if layout == "code panels" else Panels
        held = SCHEMES[scheme].fitted(plain.shape, (0,)) or SCHEMES["none"]
        arranged = Rows((1,)) if layout == "rows" else columns((0,), plain.shape)
        matrix = jax.jit(partial(pack, layout=arranged, scheme=held))(plain)
        call = compiled(self.implementation)
        np.testing.assert_array_equal(np.asarray(call(alone, matrix))[6], np.asarray(call(x, matrix))[6])
