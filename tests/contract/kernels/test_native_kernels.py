"""The native kernels for CPUs under the shared suites, and what is theirs alone: instruction sets, threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.matmul import cpu_native
from pallas_kernels.matmul.packed import pack
from pallas_kernels.parity.cases import MATMUL_CASES
from pallas_kernels.parity.gate import TOLERANCE

from .matmul_suite import MatmulSuite
from .needs import NATIVE

pytestmark = NATIVE
INSTRUCTION_SETS = ("avx512", "avx2", "portable")  # the suite has the best one


class TestMatmul(MatmulSuite):
    implementation = "cpu_native"
    dtypes = ("float32", "bfloat16")
    forms = ("panels", "rows")

    @pytest.mark.parametrize("dtype", dtypes)
    @pytest.mark.parametrize("case", [case for case in MATMUL_CASES if case.form != "plain"], ids=lambda case: case.name)
    def test_every_instruction_set_gives_the_same(self, case, dtype):
        """What this CPU does not have is computed by the portable kernels, which are checked either way."""
        x, plain = (jnp.asarray(array) for array in case.arrays(dtype))
        matrix = pack(plain if case.form == "panels" else plain.T, 1, case.form)
        want = np.asarray(x, np.float64) @ np.asarray(plain, np.float64)
        for name in INSTRUCTION_SETS:
            got = np.asarray(jax.jit(partial(cpu_native.matmul, instruction_set=name))(x, matrix))
            np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE["float32"].max_abs, err_msg=name)

    def test_a_row_does_not_depend_on_how_many_there_are(self):
        rng = np.random.default_rng(0)
        x = jnp.asarray(rng.standard_normal((17, 70)), jnp.bfloat16)
        matrix = pack(jnp.asarray(rng.standard_normal((70, 90)), jnp.bfloat16), 1, "panels")
        whole = np.asarray(cpu_native.matmul(x, matrix))
        for rows in range(1, 17):
            np.testing.assert_array_equal(np.asarray(cpu_native.matmul(x[:rows], matrix)), whole[:rows])

    def test_many_products_at_once(self):
        """Large enough to be shared between threads; several programs share the threads, and all come to an end."""
        rng = np.random.default_rng(0)
        x = jnp.asarray(rng.standard_normal((4, 256)), jnp.float32)
        plain = jnp.asarray(rng.standard_normal((256, 512)), jnp.float32)
        matrix, want = pack(plain, 1, "panels"), np.asarray(x, np.float64) @ np.asarray(plain, np.float64)
        program = jax.jit(lambda x, matrix: [cpu_native.matmul(x * factor, matrix) for factor in range(1, 9)])
        with ThreadPoolExecutor(4) as pool:
            for products in pool.map(lambda _: program(x, matrix), range(16)):
                for factor, got in enumerate(products, start=1):
                    np.testing.assert_allclose(np.asarray(got), want * factor, rtol=0, atol=1e-3)
