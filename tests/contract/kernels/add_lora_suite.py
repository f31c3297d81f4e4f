"""What every implementation of add_lora must do; a test module subclasses it and names one."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, ClassVar, NamedTuple

import jax
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels.add_lora import add_lora, reference

from .in_turn import in_turn

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 2e-3}  # one rounding between A and B may go the other way


class LoraCase(NamedTuple):
    """A call: rows of each slot, and those of nobody behind them."""

    name: str
    tokens: tuple[int, ...]
    nobodys: int = 0
    inputs: int = 64
    outputs: tuple[int, ...] = (96,)
    rank: int = 8

    def arrays(self, dtype: str, seed: int = 0) -> tuple[Any, ...]:
        """y, x, a, b and tokens; rows of nobody are NaN."""
        rng, slots = np.random.default_rng(seed), len(self.tokens)
        rows = sum(self.tokens) + self.nobodys
        x = rng.standard_normal((rows, self.inputs)).astype(DTYPES[dtype])
        x[sum(self.tokens) :] = np.nan
        a = (rng.standard_normal((slots, len(self.outputs) * self.rank, self.inputs)) / self.inputs**0.5).astype(DTYPES[dtype])
        b = tuple(rng.standard_normal((slots, self.rank, each)).astype(DTYPES[dtype]) for each in self.outputs)
        y = rng.standard_normal((rows, sum(self.outputs))).astype(np.float32)
        return y, x, a, b, np.asarray(self.tokens, np.int32)


CASES = (
    LoraCase("one row", (1,)),
    LoraCase("one of many slots", (0, 0, 5, 0), nobodys=2),
    LoraCase("every slot a row", (1,) * 20, nobodys=1, inputs=256, outputs=(320, 64, 64), rank=16),
    LoraCase("nobody", (0, 0), nobodys=3),
    LoraCase("many slots", (*(0, 1, 0, 0, 9, 2) * 20, 0), nobodys=5, inputs=48, outputs=(24, 24)),
    LoraCase("a prompt and decodes", (1, 130, 2), nobodys=4, inputs=320, outputs=(600, 600), rank=16),
    LoraCase("odd sizes", (3, 0, 2), nobodys=1, inputs=37, outputs=(5, 70, 1), rank=3),
    LoraCase("a large rank", (2, 3), inputs=96, outputs=(40,), rank=320),
    LoraCase("wide", (2, 0, 4), inputs=2100, outputs=(1031,), rank=64),
)


@cache
def compiled(implementation: str) -> Any:
    return jax.jit(partial(add_lora, implementation=implementation))


class AddLoraSuite:
    implementation: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...]] = tuple(DTYPES)

    @pytest.mark.parametrize(
        ("dtype", "case"), in_turn(CASES, ("float32", "bfloat16"), every=tuple(DTYPES), everywhere=("every slot a row",))
    )
    def test_case(self, dtype: str, case: LoraCase) -> None:
        arrays = case.arrays(dtype)
        if dtype not in self.dtypes:
            with pytest.raises(ValueError, match="it supports"):
                compiled(self.implementation)(*arrays)
            return
        got = np.asarray(compiled(self.implementation)(*arrays))
        want = reference.add_lora(*arrays)
        np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE[dtype] * max(np.abs(want).max(), 1.0))
        np.testing.assert_array_equal(got[sum(case.tokens) :], arrays[0][sum(case.tokens) :])

    def test_neighbours_do_not_matter(self) -> None:
        """Whatever other rows hold, and other adapters: NaN too."""
        case = LoraCase("", (3, 4, 2), outputs=(96, 32))
        y, x, a, b, tokens = case.arrays("float32")
        want = np.asarray(compiled(self.implementation)(y, x, a, b, tokens))
        x[:3] = x[7:] = np.nan
        got = np.asarray(compiled(self.implementation)(y, x, a, b, tokens))
        np.testing.assert_array_equal(got[3:7], want[3:7])
