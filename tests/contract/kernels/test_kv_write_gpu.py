"""kv_write in Mosaic GPU: interpreted against the reference, and compiled for an H100, in place and without a copy."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from jaxserve.aot.target import Target
from jaxserve.executor.compile_cache import nothing_kept
from pallas_kernels.kv_write import kv_write, mosaic_gpu_support
from pallas_kernels.kv_write.problem import WriteProblem
from pallas_kernels.parity.cases import DTYPES, QUANTIZED, WRITE_CASES
from pallas_kernels.parity.gate import check_write
from pallas_kernels.registry import Target as KernelTarget

from .in_turn import in_turn
from .needs import MOSAIC, PLUGIN

pytestmark = MOSAIC
CASES = {case.name: case for case in WRITE_CASES if case.tiny}
EVERYWHERE = ("any slots", "padding")


@pytest.mark.parametrize(
    ("dtype", "case"), in_turn([CASES[name] for name in EVERYWHERE], DTYPES, everywhere=EVERYWHERE[:1], first=2)
)
def test_dtypes(dtype, case):
    result = check_write(case, dtype, "mosaic_gpu_interpreted")
    assert result.verdict == "pass", result


@pytest.mark.parametrize(
    ("dtype", "case"), in_turn([case for case in CASES.values() if case.name not in EVERYWHERE], tuple(QUANTIZED))
)
def test_quantizes(dtype, case):
    result = check_write(case, dtype, "mosaic_gpu_interpreted")
    assert result.verdict == "pass", result


@pytest.mark.parametrize("name", ["padding", "pages of 8", "only padding", "head dim 80"])
def test_copies(name):
    result = check_write(CASES[name], "bfloat16", "mosaic_gpu_interpreted")
    assert result.verdict == "pass", result


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"kv_heads": 256}, None),
        ({"values": False}, "it writes values, and this cache has none beside its keys"),
        ({"kv_heads": 257}, "there can be 256 KV heads at most, not 257"),
        ({"dtype": jnp.dtype("float32")}, "keys and values must have the cache's bfloat16, not float32"),
        ({"head_dim": 72}, None),
        ({"head_dim": 36}, "a head must be a multiple of 16 bytes and at most 256 numbers, not 36 numbers"),
        ({"head_dim": 264}, "a head must be a multiple of 16 bytes and at most 256 numbers, not 264 numbers"),
        ({"kv_dtype": jnp.dtype(jnp.float8_e4m3fn), "scales_dtype": jnp.dtype("bfloat16")}, None),
        ({"kv_dtype": jnp.dtype("int8"), "scales_dtype": jnp.dtype("bfloat16")}, None),
        (
            {"kv_dtype": jnp.dtype(jnp.float8_e4m3fn), "scales_dtype": jnp.dtype("bfloat16"), "head_dim": 72},
            "a head must be a multiple of 16 bytes and at most 256 numbers, not 72 numbers",
        ),
        (
            {"kv_dtype": jnp.dtype(jnp.float8_e4m3fn), "scales_dtype": jnp.dtype("bfloat16"), "kv_heads": 65},
            "there can be 64 KV heads at most, not 65",
        ),
    ],
)
def test_limits(changes, reason):
    bfloat16 = jnp.dtype("bfloat16")
    problem = {"tokens": 4, "kv_heads": 8, "head_dim": 128, "page_size": 16, "dtype": bfloat16, "kv_dtype": bfloat16}
    assert mosaic_gpu_support.supports(WriteProblem(**problem | changes)) == reason


@PLUGIN
@pytest.mark.parametrize(
    ("dtype", "source", "kv_heads", "dim", "scale_dtype"),
    [
        ("bfloat16", "bfloat16", 8, 128, None),
        pytest.param("float16", "float16", 1, 64, None, marks=pytest.mark.extended),
        ("float32", "float32", 32, 256, None),
        pytest.param("float8_e4m3fn", "bfloat16", 8, 128, "float32", marks=pytest.mark.extended),
        ("float8_e4m3fn", "float16", 1, 80, "bfloat16"),
        ("float8_e4m3fn", "float32", 64, 256, "float32"),
        ("int8", "bfloat16", 8, 128, "bfloat16"),
        pytest.param("int8", "float32", 64, 256, "float32", marks=pytest.mark.extended),
    ],
)
def test_compiles_for_an_h100_in_place(dtype, source, kv_heads, dim, scale_dtype):
    device = Target.parse("h100").devices()[0]
    target = KernelTarget.of(device)
    assert target == KernelTarget("gpu", (9, 0))

    def array(shape, kind):
        return jax.ShapeDtypeStruct(shape, jnp.dtype(kind), sharding=SingleDeviceSharding(device))

    pages = array((4, 100, 2, kv_heads, 16, dim), dtype)
    new = array((64, kv_heads, dim), source)
    scales = None if scale_dtype is None else array(pages.shape[:5], scale_dtype)

    def two_layers(kv_pages, kv_scales, k, slots):
        for layer in (0, 3):
            written = kv_write(
                kv_pages, k, k, slots, layer=layer, kv_scales=kv_scales, implementation="mosaic_gpu", target=target
            )
            kv_pages, kv_scales = (written, None) if kv_scales is None else written
        return kv_pages, kv_scales

    step = jax.jit(two_layers, donate_argnums=(0, 1))
    with nothing_kept():
        compiled = step.lower(pages, scales, new, array((64,), "int32")).compile()
    text, memory = compiled.as_text(), compiled.memory_analysis()
    assert text is not None
    assert memory is not None
    assert len(re.findall(r'custom_call_target="mosaic_gpu', text)) == 2
    assert not re.findall(r"= \S+ (?:copy|copy-start|fusion)\(", text)
    cache_bytes = sum(array.size * array.dtype.itemsize for array in (pages, scales) if array is not None)
    assert memory.alias_size_in_bytes == cache_bytes
