"""What every implementation of kv_write must do; a test module subclasses it and names one."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.kv_write import check_inputs, kv_write, reference

from .batches import DTYPES


class KvWriteSuite:
    implementation: ClassVar[str]

    def check(self, slots: list[int], *, dtype: str = "float32", page_size: int = 16, source: str = "float32") -> None:
        rng = np.random.default_rng(len(slots))
        cache = rng.standard_normal((3, 9, 2, 2, page_size, 64)).astype(DTYPES[dtype])
        k, v = rng.standard_normal((2, len(slots), 2, 64)).astype(DTYPES[source])
        where = np.asarray(slots, np.int32)
        check_inputs(cache, where)
        call = jax.jit(partial(kv_write, layer=1, implementation=self.implementation), donate_argnums=0)
        got = np.array(call(jnp.array(cache), jnp.asarray(k), jnp.asarray(v), jnp.asarray(where)))
        want, _ = reference.kv_write(cache, None, k, v, where, layer=1)
        # The null page may hold anything.
        np.testing.assert_array_equal(got[:, 1:], want[:, 1:])

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
    def test_dtypes(self, dtype):
        self.check([16, 143, 31, 32, 77], dtype=dtype, source=dtype)

    def test_converts_to_the_cache(self):
        self.check([16, 143, 31], dtype="bfloat16")

    @pytest.mark.parametrize("page_size", [8, 32])
    def test_page_size(self, page_size):
        self.check([page_size, 2 * page_size - 1, 5 * page_size + 3], page_size=page_size)

    def test_padding(self):
        self.check([0, 50, 0, 51, 0, 0])

    def test_one_token(self):
        self.check([100])

    def test_only_padding(self):
        self.check([0, 0])

    def test_a_long_chunk(self):
        self.check([*range(16, 144), 0, 0])
