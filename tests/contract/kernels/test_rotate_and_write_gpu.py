"""rotate_and_write in Mosaic GPU: interpreted against the reference, and compiled for an H100, in place and without a copy."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from jaxserve.aot.target import Target
from jaxserve.executor.compile_cache import nothing_kept
from pallas_kernels.parity.cases import ROTATE_CASES
from pallas_kernels.parity.gate import check_rotate
from pallas_kernels.registry import Target as KernelTarget
from pallas_kernels.rotate_and_write import Rotation, mosaic_gpu_support, rotate_and_write
from pallas_kernels.rotate_and_write.problem import RotateProblem

from . import ptx
from .needs import MOSAIC, PLUGIN

pytestmark = MOSAIC
CASES = {case.name: case for case in ROTATE_CASES if case.tiny}
EVERYWHERE = ("any slots", "padding")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, dtype) for name in EVERYWHERE for dtype in ("float32", "float16")), *((name, "bfloat16") for name in CASES)],
)
def test_case(capfd, name, dtype):
    result = check_rotate(CASES[name], dtype, "mosaic_gpu_interpreted")
    assert result.verdict == ("unsupported" if name == "other source" else "pass"), result
    assert "RACE DETECTED" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"heads": 8, "kv_heads": 1, "head_dim": 64, "rotated_dims": 64}, None),
        ({"rotated_dims": 96}, None),
        ({"values": False}, "it writes values, and this cache has none beside its keys"),
        ({"dtype": jnp.dtype("float32")}, "queries, keys and values must have the cache's bfloat16, not float32"),
        ({"heads": 256, "kv_heads": 1}, "there can be 256 heads of queries and keys at most, not 257"),
        ({"rotated_dims": 48}, "the rotated dimensions must be a multiple of 32, not 48"),
        ({"head_dim": 132}, "a head must be a multiple of 16 bytes and at most 256 numbers, not 132 numbers"),
        ({"head_dim": 288}, "a head must be a multiple of 16 bytes and at most 256 numbers, not 288 numbers"),
        (
            {"heads": 4, "kv_heads": 1, "head_dim": 32, "rotated_dims": 32},
            "4 and 1 heads of 32 numbers are not whole 128 bytes",
        ),
        (
            {"heads": 4, "kv_heads": 2, "head_dim": 72, "rotated_dims": 64},
            "4 and 2 heads of 72 numbers are not whole 128 bytes",
        ),
        (
            {"heads": 9, "kv_heads": 1, "head_dim": 64, "rotated_dims": 64},
            "9 and 1 heads of 64 numbers are not whole 128 bytes",
        ),
    ],
)
def test_limits(changes, reason):
    bfloat16 = jnp.dtype("bfloat16")
    problem = {"heads": 32, "kv_heads": 8, "head_dim": 128, "rotated_dims": 128, "dtype": bfloat16, "kv_dtype": bfloat16}
    assert mosaic_gpu_support.supports(RotateProblem(**problem | changes)) == reason


@PLUGIN
@pytest.mark.parametrize(
    ("dtype", "heads", "kv_heads", "dim", "rotated"),
    [
        ("bfloat16", 32, 8, 128, 128),
        pytest.param("bfloat16", 8, 1, 64, 64, marks=pytest.mark.extended),
        pytest.param("bfloat16", 24, 8, 128, 96, marks=pytest.mark.extended),
        ("float16", 4, 4, 64, 32),
        ("float32", 64, 8, 256, 256),
    ],
)
def test_compiles_for_an_h100_in_place(capfd, monkeypatch, dtype, heads, kv_heads, dim, rotated):
    monkeypatch.setenv("MOSAIC_GPU_DUMP_PTXAS", "1")
    device = Target.parse("h100").devices()[0]
    tokens, every = 64, heads + 2 * kv_heads

    def array(shape, kind):
        return jax.ShapeDtypeStruct(shape, jnp.dtype(kind), sharding=SingleDeviceSharding(device))

    pages = array((4, 100, 2, kv_heads, 16, dim), dtype)
    turns = array((tokens, rotated // 2), "float32")

    def two_layers(kv_pages, product, rotation, slots):
        """Heads are slices of a product, cut as the model cuts them: what puts them together is no operation."""
        q, k, v = jnp.split(product.reshape(tokens, 1, every, dim), (heads, heads + kv_heads), axis=2)
        q, k, v = q.reshape(tokens, heads, dim), k.reshape(tokens, kv_heads, dim), v.reshape(tokens, kv_heads, dim)
        rotated = []
        for layer in (0, 3):
            q_out, kv_pages = rotate_and_write(kv_pages, q, k, v, rotation, slots, layer=layer, target=KernelTarget.of(device))
            rotated.append(q_out)
        return kv_pages, rotated

    arguments = pages, array((tokens, every * dim), dtype), Rotation(turns, turns), array((tokens,), "int32")
    with nothing_kept():
        compiled = jax.jit(two_layers, donate_argnums=0).lower(*arguments).compile()
    text, memory = compiled.as_text(), compiled.memory_analysis()
    assert text is not None
    assert memory is not None
    assert len(re.findall(r'custom_call_target="mosaic_gpu', text)) == 2
    assert not re.findall(r"= \S+ (?:copy|copy-start|fusion|slice|concatenate)\(", text)
    assert memory.alias_size_in_bytes == pages.size * pages.dtype.itemsize
    printed = capfd.readouterr()
    used = ptx.usage(printed.out + printed.err)["rotate_and_write"]
    assert used.spilled == 0
    assert used.registers <= 128  # four blocks of 128 threads and more have room on a multiprocessor
