"""`--deterministic`: a token's logits depend on its own sequence alone, bit by bit.

Not on the other rows of a step, on how its prompt was cut into chunks, on what the prefix cache had, or on the bucket that the
step was padded to. It is so by construction: a row's numbers are added in one order, whatever the shape of the step.

On a CPU the native kernels add a row's numbers in one order however many rows there are. What is left to XLA is elementwise, or
sums within a row (norms, softmax, log-probabilities) or over a token's neighbours (convolutions). Sums within a row it gives to a
library where an array is large, and adds in an order of its own where it is small, so that they depend on the bucket. Here it
always adds itself.

On a GPU cuBLASLt chooses among its kernels by the number of rows, and attention cuts a row's keys where the others leave room.
Here all steps have one shape and are one program, each row's keys are read by one thread block from first to last, and no
kernel is chosen by measuring. No GPU has run it.

What could not be made so, or not be shown to be so, is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from types import MappingProxyType

import jax
from jax.sharding import Mesh

from jaxserve.config.kernels import Kernels, LayerRange
from jaxserve.errors import ConfigError
from jaxserve.executor.cache_arrays import is_quantized
from jaxserve.executor.gpu_options import is_gpu
from jaxserve.executor.options import ExecutorOptions
from jaxserve.models.config import DecoderConfig
from pallas_kernels import hopper, native
from pallas_kernels.ragged_paged_attention import UNSPLIT
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
GPU_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        # Of what a library offers the first is taken, not what was fastest at this start.
        "xla_gpu_autotune_level": "0",
        # Nothing that adds in an order of its own at every call, such as scatters with atomic additions.
        "xla_gpu_exclude_nondeterministic_ops": "True",
    }
)


def invariant_options(device: jax.Device) -> dict[str, str]:
    """XLA's options beside those that programs for the device always have."""
    return dict(GPU_OPTIONS if is_gpu(device) else CPU_OPTIONS)


def invariant_kernels(kernels: Kernels, device: jax.Device) -> Kernels:
    """What computes the layers: on a GPU attention that does not share the keys of a row, on a CPU what always does."""
    return replace(kernels, attention=(LayerRange(UNSPLIT, 0, None),)) if is_gpu(device) else kernels


def require_invariant(config: DecoderConfig, mesh: Mesh, options: ExecutorOptions) -> None:
    """Raise ConfigError, with all reasons, where a token's logits may depend on what else is in the step."""
    device = mesh.devices.flat[0]
    reasons = [
        *_of_any(config, mesh, options),
        *(_of_gpus(config, device, options) if is_gpu(device) else _of_cpus(config, options)),
    ]
    if reasons:
        raise ConfigError(f"{NAME} cannot be promised: {'; '.join(reasons)}", param=NAME)


def _of_any(config: DecoderConfig, mesh: Mesh, options: ExecutorOptions) -> Iterator[str]:
    if mesh.size > 1:
        yield f"tensor_parallel_size is {mesh.size}, and what several devices add depends on where in the step a row is"
    for operation in fields(Kernels):
        if getattr(options.kernels, operation.name):
            yield f"{operation.name}_kernel is named"
    if config.latent is not None:
        yield "attention over latents has no kernel for it"


def _of_cpus(config: DecoderConfig, options: ExecutorOptions) -> Iterator[str]:
    """What native kernels do not compute: XLA's products depend on the number of rows."""
    if (missing := native.missing()) is not None:
        yield f"there are no native kernels: {missing}"
    if options.dtype not in DTYPES:
        yield f"native kernels multiply {' and '.join(DTYPES)}, not {options.dtype}"
    if options.kv_dtype != options.dtype and not is_quantized(options.kv_dtype):
        yield f"native attention reads a cache of {options.dtype} or of 8 bits, not of {options.kv_dtype}"
    if config.experts is not None and config.mlp_bias:
        yield "XLA multiplies the biases of experts"


def _of_gpus(config: DecoderConfig, device: jax.Device, options: ExecutorOptions) -> Iterator[str]:
    """Steps of one shape, and attention by a kernel that has only Hoppers."""
    if (reason := hopper.runs_on(Target.of(device))) is not None:
        yield f"attention has no kernel for it: {reason}"
    if config.recurrent is not None:
        yield "layers with recurrent states compute long rows another way than short ones"
    if options.max_num_batched_tokens <= options.max_num_seqs:
        yield (
            f"every step has max_num_batched_tokens, {options.max_num_batched_tokens}, which must be more than max_num_seqs,"
            f" {options.max_num_seqs}"
        )
    if options.max_drafts:
        yield "steps with drafts have another shape than those without"
    if options.autotune_results is not None:
        yield "autotune_results choose products by measuring"
