"""Kernels in C++ for CPUs: an optional library that is compiled where there is a compiler, and called through jax.ffi."""

from pallas_kernels.native.library import digest
from pallas_kernels.native.load import missing, runs_on, target_name

__all__ = ["digest", "missing", "runs_on", "target_name"]
