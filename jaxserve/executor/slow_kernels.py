"""What a GPU computes without a kernel, and why: known before anything is traced, for programs may come from a cache.

Attention and the products of experts have kernels for some GPUs, dtypes and shapes. All else is computed by plain XLA, which is
right and slow: many small kernels, in loops, instead of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh

from jaxserve.config.kernels import LayerRange, kernel_of
from jaxserve.executor.cache_arrays import SCALES_DTYPE, is_quantized
from jaxserve.executor.options import ExecutorOptions
from jaxserve.models.config import DecoderConfig
from jaxserve.models.shards import held_kv_heads
from jaxserve.step.buckets import CHUNK_ROWS
from pallas_kernels import native
from pallas_kernels.grouped_matmul import implementations as grouped
from pallas_kernels.grouped_matmul.problem import GroupedProblem
from pallas_kernels.ragged_paged_attention import AttentionOptions
from pallas_kernels.ragged_paged_attention import implementations as attention
from pallas_kernels.ragged_paged_attention.problem import AttentionProblem
from pallas_kernels.registry import Implementation, Target, pick
from sharding import EXPERT

PLAIN = "xla"  # the implementation without a kernel, of every operation


def slow_kernels(config: DecoderConfig, mesh: Mesh, options: ExecutorOptions) -> str | None:
    """One line for people: what runs in plain XLA on GPUs though there is a kernel for it somewhere, and why. None for nothing.

    Layers whose implementation was named are left out: somebody knows.
    """
    target = Target.of(mesh.devices.flat[0])
    if target.platform != "gpu":
        return None
    kernels, shapes = options.kernels, list(_step_shapes(options))
    found = [
        *_slow("attention", attention.IMPLEMENTATIONS, target, _attention(config, mesh, options, kernels.attention, shapes)),
        *_sparse(config, kernels.attention),
        *_slow(
            "products of experts",
            grouped.IMPLEMENTATIONS,
            target,
            _experts(config, mesh, options, kernels.grouped_matmul, shapes),
        ),
    ]
    return f"slow on {target}, for want of a kernel: {', '.join(found)}" if found else None


def _slow(
    operation: str, table: Sequence[Implementation[Any, Any]], target: Target, problems: Iterable[tuple[str, Any]]
) -> Iterator[str]:
    """Say for what kinds of steps an operation gets no kernel, once for each reason."""
    reasons: dict[str, dict[str, None]] = {}  # kinds by reason, in order
    kinds = set()
    for_gpus = [entry for entry in table if entry.runs_on is not native.runs_on]
    for kind, problem in problems:
        kinds.add(kind)
        entry, passed = pick(operation, for_gpus, target, problem)
        if entry.name == PLAIN:
            reasons.setdefault("; ".join(passed), {})[kind] = None
    for reason, slow in reasons.items():
        yield f"{operation} ({reason})" if len(slow) == len(kinds) else f"{operation} of {' and '.join(slow)} ({reason})"


def _sparse(config: DecoderConfig, named: Sequence[LayerRange]) -> Iterator[str]:
    """Say that what an indexer chooses has no kernel at all."""
    if _indexed(config) and not all(kernel_of(named, layer) for layer in range(config.num_layers)):
        yield "attention to chosen tokens (no GPU has a kernel for it)"


def _indexed(config: DecoderConfig) -> bool:
    return config.latent is not None and config.latent.indexer is not None


def _step_shapes(options: ExecutorOptions) -> Iterator[tuple[str, int, int]]:
    """Kind, tokens and rows of the largest step of each kind."""
    rows = options.max_num_seqs
    yield "decodes", rows, rows
    chunk_rows = min(CHUNK_ROWS, rows)
    yield "prompts", max(options.max_num_batched_tokens, chunk_rows + 1), chunk_rows


def _attention(
    config: DecoderConfig,
    mesh: Mesh,
    options: ExecutorOptions,
    named: Sequence[LayerRange],
    shapes: Sequence[tuple[str, int, int]],
) -> Iterator[tuple[str, AttentionProblem]]:
    """What the layers ask for on one device; nothing where indexers choose what they attend to."""
    if _indexed(config):
        return
    devices = mesh.devices.size
    layers = (layer for layer in range(config.num_layers) if kernel_of(named, layer) is None)
    value_dim = None if config.latent is None else config.latent.kv_rank
    for window, own in dict.fromkeys((config.windows[layer], config.heads_of(layer)) for layer in layers):
        seen = None if config.chunked else window  # chunks are rows of their own
        for kind, tokens, rows in shapes:
            yield (
                kind,
                AttentionProblem(
                    tokens=tokens,
                    rows=rows,
                    pages_per_row=options.max_pages,
                    heads=config.num_heads // devices,
                    kv_heads=held_kv_heads(own.kv_heads, devices) // devices,
                    head_dim=own.head_dim,
                    page_size=options.page_size,
                    dtype=jnp.dtype(options.dtype if is_quantized(options.kv_dtype) else options.kv_dtype),
                    kv_dtype=jnp.dtype(options.kv_dtype),
                    scales_dtype=jnp.dtype(SCALES_DTYPE) if is_quantized(options.kv_dtype) else None,
                    options=AttentionOptions(1.0, seen, config.scales.attention_cap, value_dim),
                    sinks=config.sinks,
                ),
            )


def _experts(
    config: DecoderConfig,
    mesh: Mesh,
    options: ExecutorOptions,
    named: Sequence[LayerRange],
    shapes: Sequence[tuple[str, int, int]],
) -> Iterator[tuple[str, GroupedProblem]]:
    """What the layers that have experts ask for on one device: both products."""
    experts = config.experts
    if experts is None or all(kernel_of(named, layer) for layer, has in enumerate(experts.layers) if has):
        return
    groups, dtype = mesh.shape[EXPERT], jnp.dtype(options.dtype)
    width, embed = experts.ffn_size * groups // mesh.devices.size, experts.latent_size or config.hidden_size
    for kind, tokens, _ in shapes:
        rows = tokens * experts.active
        for inputs, outputs in ((embed, (1 + config.gated) * width), (width, embed)):
            count = experts.count // groups
            yield kind, GroupedProblem(rows, count, inputs, outputs, dtype, dtype, max(rows // groups, 1))
