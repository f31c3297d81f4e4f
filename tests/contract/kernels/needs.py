"""What kernel tests cannot do without; the summary at the end of a run repeats what was not checked."""

from importlib.util import find_spec

import jax
import pytest

from pallas_kernels import native
from pallas_kernels.hopper import OLDEST_JAX

MOSAIC = pytest.mark.skipif(
    jax.__version_info__ < OLDEST_JAX, reason="NOT CHECKED: Mosaic GPU kernels need jax 0.11.2, hence Python 3.12"
)
PLUGIN = pytest.mark.skipif(
    find_spec("jax_cuda13_plugin") is None, reason="NOT CHECKED: compiling for an H100 needs jax-cuda13-plugin"
)
TRITON = pytest.mark.skipif(
    find_spec("jax_triton") is None, reason="NOT CHECKED: the Triton kernel needs jax-triton: make triton, on Python 3.12"
)
NATIVE = pytest.mark.skipif(native.missing() is not None, reason=f"NOT CHECKED: native kernels: {native.missing()}")
