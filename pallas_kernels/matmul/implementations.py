"""The implementations of matmul, preferred first."""

from __future__ import annotations

from collections.abc import Callable

import jax

from pallas_kernels import hopper, native
from pallas_kernels.matmul import cpu_native, mosaic_gpu_support, xla
from pallas_kernels.matmul.problem import MatmulProblem
from pallas_kernels.registry import Implementation, later

Matmul = Callable[..., jax.Array]
"""The operation after its arguments were checked, see api.py: of rows, a matrix and, unless native kernels read it, `summed`."""

_mosaic_gpu = later("pallas_kernels.matmul.mosaic_gpu", "matmul")
_compiled, _interpreted = hopper.implementations(
    _mosaic_gpu, mosaic_gpu_support.LIMITS, mosaic_gpu_support.supports, interpreted="small matrices, on CPUs"
)

IMPLEMENTATIONS: tuple[Implementation[Matmul, MatmulProblem], ...] = (
    _compiled,
    Implementation(
        "cpu_native",
        cpu_native.matmul,
        limits=cpu_native.LIMITS,
        checked="every case, on CPUs",
        runs_on=native.runs_on,
        supports=cpu_native.supports,
    ),
    Implementation(
        "xla", xla.matmul, limits="everything", checked="every case, on CPUs; golden checkpoints on an H200, in float32"
    ),
    _interpreted,
)

NAMES = tuple(entry.name for entry in IMPLEMENTATIONS)
