"""How XLA compiles for GPUs: every option that jaxserve sets, with its reason.

They are given with each compilation, not through XLA_FLAGS: they belong to the program, and a process's CPU programs and its
environment stay as they are. Checked with jax 0.11.2 by compiling; their effect on speed has not been measured on several GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import jax

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
        # Products of the same activations are not made one: their weights, such as a router's and a shared expert's, would be
        # put side by side at every step.
        "xla_gpu_dot_merger_threshold_mb": "0",
        # XLA counts the donated cache twice, as argument and as result, finds that memory cannot hold both, and computes things
        # again to save some: hundreds of kernels for nothing.
        "xla_disable_hlo_passes": "rematerialization",
    }
)


def compiler_options(device: jax.Device) -> dict[str, str]:
    """Options for programs of a device; none for CPUs."""
    return dict(OPTIONS) if device.platform in ("gpu", "cuda") else {}
