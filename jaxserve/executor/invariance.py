"""`--deterministic`: a token's logits depend on its own sequence alone, bit by bit.

Not on the other rows of a step, on how its prompt was cut into chunks, on what the prefix cache had, or on the bucket that the
step was padded to. It is so by construction: a row's numbers are added in one order, whatever the shape of the step.

On a CPU the native kernels add a row's numbers in one order however many rows there are. What is left to XLA is elementwise, or
sums within a row (norms, softmax, log-probabilities). Those it gives to a library where an array is large, and adds in an order
of its own where it is small, so that they depend on the bucket. Here it always adds itself.

What could not be made so, or not be shown to be so, is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from types import MappingProxyType

import jax
from jax.sharding import Mesh

from jaxserve.config.kernels import Kernels
from jaxserve.errors import ConfigError
from jaxserve.executor.cache_arrays import is_quantized
from jaxserve.executor.options import ExecutorOptions
from jaxserve.models.config import DecoderConfig
from pallas_kernels import native
from pallas_kernels.registry import Target

NAME = "deterministic"
"""The setting."""
DTYPES = ("bfloat16", "float32")
"""Of native kernels."""
CPU_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        # No fusions by YNNPACK: it is given sums over arrays from some thousand numbers on, and adds in another order than XLA.
        "xla_cpu_experimental_ynn_fusion_type": "",
    }
)


def invariant_options(device: jax.Device) -> dict[str, str]:
    """XLA's options beside those that programs for the device always have."""
    return dict(CPU_OPTIONS) if device.platform == "cpu" else {}


def require_invariant(config: DecoderConfig, mesh: Mesh, options: ExecutorOptions) -> None:
    """Raise ConfigError, with all reasons, where a token's logits may depend on what else is in the step."""
    reasons = list(_reasons(config, mesh, options))
    if reasons:
        raise ConfigError(f"{NAME} cannot be promised: {'; '.join(reasons)}", param=NAME)


def _reasons(config: DecoderConfig, mesh: Mesh, options: ExecutorOptions) -> Iterator[str]:
    target = Target.of(mesh.devices.flat[0])
    if target.platform != "cpu":
        yield f"it is for CPUs, not for {target}"
    if mesh.size > 1:
        yield f"tensor_parallel_size is {mesh.size}, and several devices multiply in XLA, which adds by the number of rows"
    if target.platform == "cpu" and (missing := native.missing()) is not None:
        yield f"there are no native kernels ({missing}), and XLA adds by the number of rows"
    for operation in fields(Kernels):
        if getattr(options.kernels, operation.name):
            yield f"{operation.name}_kernel is named"
    if options.dtype not in DTYPES:
        yield f"native kernels multiply {' and '.join(DTYPES)}, not {options.dtype}"
    if options.kv_dtype != options.dtype and not is_quantized(options.kv_dtype):
        yield f"native attention reads a cache of {options.dtype} or of 8 bits, not of {options.kv_dtype}"
    if config.latent is not None:
        yield "XLA multiplies the latents of attention by matrices"
    if config.experts is not None and config.mlp_bias:
        yield "XLA multiplies the biases of experts"
