"""How XLA compiles for GPUs: every option that jaxserve sets, with its reason.

They are given with each compilation, not through XLA_FLAGS: they belong to the program, and a process's CPU programs and its
environment stay as they are. Checked with jax 0.11.2 by compiling; their effect on speed has not been measured on several GPUs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import jax

from pallas_kernels.matmul import Matrix
from pallas_kernels.quantization import Scheme

COMMANDS = (
    "FUSION",
    "CUBLAS",
    "CUBLASLT",
    "CUSTOM_CALL",
    "CUDNN",
    "COLLECTIVES",
    "CONDITIONAL",
    "WHILE",
    "DYNAMIC_SLICE_FUSION",
)

OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        # All that a step is made of may be part of a command buffer (CUDA graph): one launch a step in place of one a kernel.
        # A decode step of 80 layers has over a thousand kernels, which the host would need as many microseconds to launch.
        "xla_gpu_enable_command_buffer": ",".join(COMMANDS),
        # All-reduces by NCCL. XLA's own kernel for small ones cannot be part of a command buffer, so that each of them (two a
        # layer) would split it; which of the two is faster for the whole step is to be measured.
        "xla_gpu_experimental_use_collective_kernels": "",
        # A layer's next matmul needs the sum: there is nothing to run beside it, and starting it on another stream costs two
        # synchronisations each.
        "xla_gpu_disable_async_collectives": "ALLCOLLECTIVES",
        # Matrix products by cuBLASLt, which chooses well among its kernels without measuring. XLA's Triton products do not: where
        # there is no GPU to measure on they take the first tile that compiles, 16 x 8, and split their sums into reductions that
        # are kernels of their own. An engine on a GPU could measure tiles and sometimes find a better one. It has the option too:
        # measuring takes minutes a start, and a program that it compiles must round as the saved ones beside it do.
        "xla_gpu_enable_triton_gemm": "False",
        # Products of the same activations are not made one: their weights, such as a router's and a shared expert's, would be
        # put side by side at every step.
        "xla_gpu_dot_merger_threshold_mb": "0",
        # rematerialization: XLA counts the donated cache twice, as argument and as result, finds that memory cannot hold both,
        # and computes things again to save some: hundreds of kernels for nothing. cublas-pad-for-gemms: a vocabulary of, say,
        # 49155 would be made a multiple of 8 for cuBLASLt by writing the whole table again at every step.
        "xla_disable_hlo_passes": "rematerialization,cublas-pad-for-gemms",
    }
)

# Where XLA multiplies by matrices of fewer bits: only Triton's products widen them in registers. Before cuBLASLt's, all of a
# matrix would be written again in 16 bits, at every step. Without measuring, their tiles are those that XLA's cost model finds
# fastest. Matrices that our kernel for Hopper reads need none of that; for many rows, left to XLA, a copy costs less.
# FP8 is multiplied as it is.
WIDENED: Mapping[str, str] = MappingProxyType(
    {"xla_gpu_enable_triton_gemm": "True", "xla_gpu_experimental_cost_model_gemm_tiling_default": "True"}
)


# With factors for groups of inputs it would write such a matrix first, too, but for this.
GROUPED: Mapping[str, str] = MappingProxyType({"xla_gpu_experimental_enable_subchannel_dequantisation_fusion": "True"})


def compiler_options(device: jax.Device, widened: Collection[Scheme] = ()) -> dict[str, str]:
    """Options for programs of a device, and of parameters some of which XLA widens, of those schemes; none for CPUs."""
    if not is_gpu(device):
        return {}
    grouped = any(scheme.grouped for scheme in widened)
    return {**OPTIONS, **(WIDENED if widened else {}), **(GROUPED if grouped else {})}


def widened_schemes(params: Any) -> frozenset[Scheme]:
    """Of matrices that XLA multiplies by in the dtype of the activations, after widening them."""
    leaves = jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, Matrix))
    plain = (leaf.scheme for leaf in leaves if isinstance(leaf, Matrix) and leaf.layout.name == "plain")
    return frozenset(scheme for scheme in plain if scheme.widened)


def matmul_precision(device: jax.Device, dtype: str) -> str | None:
    """What `ProgramSpec.precision` is: a GPU multiplies float32 as TensorFloat-32, of 10 bits, unless asked not to."""
    return "highest" if is_gpu(device) and dtype == "float32" else None


def is_gpu(device: jax.Device) -> bool:
    return device.platform in ("gpu", "cuda")
