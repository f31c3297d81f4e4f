"""The Mosaic GPU kernels compiled for an H100 on machines without a GPU: registers, shared memory, layouts, sizes of copies."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from jaxserve.aot.target import Target as CompileTarget
from jaxserve.executor.compile_cache import nothing_kept
from pallas_kernels.ragged_paged_attention import mosaic_gpu, ragged_paged_attention
from pallas_kernels.registry import Target

from .needs import MOSAIC, PLUGIN

pytestmark = [MOSAIC, PLUGIN]

FLOAT8 = jnp.float8_e4m3fn
HEADS, KV_HEADS, PAGES_PER_ROW = 32, 8, 256


@pytest.fixture(scope="module")
def device():
    with nothing_kept():
        yield CompileTarget.parse("h100").devices()[0]


def lower(
    device,
    *,
    tokens,
    rows,
    dim,
    page_size=16,
    dtype=jnp.bfloat16,
    scale_dtype=None,
    sinks=False,
    function=ragged_paged_attention,
    **options,
):
    """Lower for a cache of 4 layers, in float8 if it has scales; the kernels are the ones that the op chooses for the device."""
    placed = partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(device))
    call = partial(function, layer=1, scale=0.1, target=Target.of(device), **options)
    pages = (4, 512, 2, KV_HEADS, page_size, dim)
    return jax.jit(call).lower(
        placed((tokens, HEADS, dim), dtype),
        placed(pages, dtype if scale_dtype is None else FLOAT8),
        placed((rows, PAGES_PER_ROW), jnp.int32),
        placed((rows + 1,), jnp.int32),
        placed((rows,), jnp.int32),
        kv_scales=None if scale_dtype is None else placed(pages[:5], scale_dtype),
        sinks=placed((HEADS,), jnp.float32) if sinks else None,
    )


def kernels(lowered) -> int:
    return lowered.as_text().count("mosaic_gpu_v2")


# Each head dim, dtype and page size at least once; all of them together take minutes: `python -m benchmarks.compile_kernels`.
@pytest.mark.parametrize(
    ("dim", "dtype", "page_size"),
    [
        (16, jnp.bfloat16, 16),
        (64, jnp.bfloat16, 16),
        (80, jnp.bfloat16, 64),
        (96, jnp.float16, 32),
        (128, jnp.bfloat16, 16),
        (128, jnp.float16, 8),
        (256, jnp.bfloat16, 16),
        (256, jnp.float16, 64),
    ],
)
def test_mixed_batches(device, dim, dtype, page_size):
    lowered = lower(device, tokens=256, rows=8, dim=dim, dtype=dtype, page_size=page_size)
    assert kernels(lowered) == 2  # decode and prefill
    lowered.compile()


@pytest.mark.parametrize(
    ("dim", "dtype", "page_size", "scale_dtype"),
    [
        (64, jnp.bfloat16, 64, jnp.float32),
        (80, jnp.bfloat16, 16, jnp.float32),
        (96, jnp.float16, 32, jnp.float16),
        (128, jnp.bfloat16, 8, jnp.float16),
        (256, jnp.bfloat16, 16, jnp.float32),
    ],
)
def test_mixed_batches_in_float8(device, dim, dtype, page_size, scale_dtype):
    lowered = lower(device, tokens=256, rows=8, dim=dim, dtype=dtype, page_size=page_size, scale_dtype=scale_dtype)
    assert kernels(lowered) == 2
    lowered.compile()


@pytest.mark.parametrize("scale_dtype", [None, jnp.float32], ids=["bfloat16", "float8"])
def test_decodes_with_every_option(device, scale_dtype):
    lowered = lower(device, tokens=64, rows=64, dim=128, scale_dtype=scale_dtype, window=1024, soft_cap=30.0, sinks=True)
    assert kernels(lowered) == 1
    compiled = lowered.compile()
    # The cache is read where it lies: what is made is small next to it.
    assert compiled.memory_analysis().temp_size_in_bytes < 16e6


def test_layers_share_a_kernel(device):
    def both(*arrays, layer, **options):
        return [ragged_paged_attention(*arrays, layer=each, **options) for each in (0, 3)]

    assert kernels(lower(device, tokens=8, rows=8, dim=64, function=both)) == 1


def test_too_large_a_block_is_refused(device, monkeypatch):
    monkeypatch.setattr(mosaic_gpu, "HOPPER", replace(mosaic_gpu.HOPPER, half_block_bytes=300 * 1024))
    with pytest.raises(ValueError, match="exceeds available shared memory"):
        lower(device, tokens=8, rows=8, dim=256)
