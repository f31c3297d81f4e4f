"""rotate_write_attend in Mosaic GPU: interpreted against the reference, and compiled for an H100, in place and without a copy."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from jaxserve.aot.target import Target
from jaxserve.executor.compile_cache import nothing_kept
from pallas_kernels.parity.cases import PLAIN, ROTATE_ATTEND_CASES
from pallas_kernels.parity.features import ATTENTION, ROTATE
from pallas_kernels.parity.gate import check_rotate_attend
from pallas_kernels.ragged_paged_attention import AttentionOptions
from pallas_kernels.registry import Target as KernelTarget
from pallas_kernels.rotate_and_write import Rotation
from pallas_kernels.rotate_write_attend import mosaic_gpu_support, rotate_write_attend
from pallas_kernels.rotate_write_attend.problem import RotateAttendProblem
from tests.support.tiers import tiered

from . import ptx
from .needs import MOSAIC, PLUGIN

pytestmark = MOSAIC
CASES = {case.name: case for case in ROTATE_ATTEND_CASES if case.tiny}
SEVERAL = "tokens as rows"
CORE = ("everything", "odd group", SEVERAL)  # heads that share a tile and one of a tile alone, every option, several tokens


@pytest.mark.parametrize("name", tiered(CASES, CORE))
def test_case(capfd, name):
    result = check_rotate_attend(CASES[name], "float16" if name == "odd group" else "bfloat16", "mosaic_gpu_interpreted")
    assert result.verdict == "pass", result
    # Of a row with several tokens one reads pages that another writes to: slots that it looks at under a mask alone.
    assert ("RACE DETECTED" in capfd.readouterr().out) == (name == SEVERAL)


def test_a_token_in_the_null_page_is_not_written():
    rng = np.random.default_rng(0)
    pages = rng.standard_normal((1, 3, 2, 1, 8, 32)).astype("bfloat16")
    q, k, v = (jnp.asarray(rng.standard_normal((1, heads, 32)), "bfloat16") for heads in (8, 1, 1))
    turns, rows = jnp.ones((1, 16)), [np.array(each, np.int32) for each in ([0], [[0]], [0, 1], [1])]
    call = partial(rotate_write_attend, layer=0, options=PLAIN, implementation="mosaic_gpu_interpreted")
    attended, written = jax.jit(call)(pages, q, k, v, Rotation(turns, turns), *rows)
    np.testing.assert_array_equal(written, pages)
    np.testing.assert_array_equal(attended, np.repeat(v, 8, axis=1))  # it sees nothing but itself


def problem(rotate, attend):
    return RotateAttendProblem(replace(ROTATE, **rotate), replace(ATTENTION, **attend))


def of_heads(**sizes):
    return problem(sizes, sizes)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (of_heads(), None),
        (of_heads(heads=8, kv_heads=1), None),
        (of_heads(heads=28, kv_heads=4), None),
        (of_heads(heads=4, kv_heads=1), "4 query heads to a KV head are no whole tile, and 1 KV heads do not fill it"),
        (problem({"rotated_dims": 96}, {}), None),
        (problem({"rotated_dims": 48}, {}), "the rotated dimensions must be a multiple of 32, not 48"),
        (problem({}, {"tokens": 65}), "a step can have as many tokens as rows, not 65 tokens in 64 rows"),
        (
            problem({"dtype": jnp.dtype("float32")}, {"dtype": jnp.dtype("float32")}),
            "queries, keys and values must have the cache's bfloat16, not float32",
        ),
        (problem({}, {"options": replace(PLAIN, value_dim=64)}), "it does not compute value_dim"),
        (problem({}, {"page_size": 128}), "pages must have 8, 16, 32 or 64 tokens, not 128"),
    ],
)
def test_limits(asked, reason):
    assert mosaic_gpu_support.supports(asked) == reason


def two_layers(device, *, dtype, heads, kv_heads, dim, rotated, page_size, **options):
    """Compile. Heads are slices of a product, cut as the model cuts them: what puts them together is no operation."""
    tokens, every = 64, heads + 2 * kv_heads
    placed: Any = partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(device))

    def run(kv_pages, product, rotation, *rows):
        q, k, v = jnp.split(product.reshape(tokens, 1, every, dim), (heads, heads + kv_heads), axis=2)
        q, k, v = q.reshape(tokens, heads, dim), k.reshape(tokens, kv_heads, dim), v.reshape(tokens, kv_heads, dim)
        attended = []
        for layer in (0, 3):
            out, kv_pages = rotate_write_attend(
                kv_pages,
                q,
                k,
                v,
                rotation,
                *rows,
                layer=layer,
                options=AttentionOptions(0.1, **options),
                target=KernelTarget.of(device),
            )
            attended.append(out)
        return kv_pages, attended

    pages, turns = placed((4, 100, 2, kv_heads, page_size, dim), dtype), placed((tokens, rotated // 2), jnp.float32)
    rows = [placed(shape, jnp.int32) for shape in ((tokens,), (tokens, 256), (tokens + 1,), (tokens,))]
    with nothing_kept():
        lowered = jax.jit(run, donate_argnums=0).lower(pages, placed((tokens, every * dim), dtype), Rotation(turns, turns), *rows)
        assert lowered.as_text().count("mosaic_gpu_v2") == 2, "layers share their kernels"
        return lowered.compile(), pages


@PLUGIN
@pytest.mark.parametrize(
    ("dtype", "heads", "kv_heads", "dim", "rotated", "page_size", "options"),
    [
        pytest.param(jnp.bfloat16, 32, 8, 128, 128, 16, {}, marks=pytest.mark.extended),
        (jnp.bfloat16, 8, 1, 128, 128, 16, {"window": 1024, "soft_cap": 30.0}),
        pytest.param(jnp.bfloat16, 28, 4, 128, 96, 64, {}, marks=pytest.mark.extended),
        (jnp.float16, 4, 4, 64, 32, 8, {}),
        pytest.param(jnp.bfloat16, 16, 4, 80, 64, 32, {}, marks=pytest.mark.extended),
        (jnp.bfloat16, 32, 8, 256, 256, 16, {}),
    ],
)
def test_compiles_for_an_h100_in_place(capfd, monkeypatch, dtype, heads, kv_heads, dim, rotated, page_size, options):
    for what in ("PTX", "PTXAS"):
        monkeypatch.setenv(f"MOSAIC_GPU_DUMP_{what}", "1")
    device = Target.parse("h100").devices()[0]
    sizes = {"heads": heads, "kv_heads": kv_heads, "dim": dim, "rotated": rotated, "page_size": page_size}
    compiled, pages = two_layers(device, dtype=dtype, **sizes, **options)
    text, memory, printed = compiled.as_text(), compiled.memory_analysis(), capfd.readouterr()
    assert len(re.findall(r'custom_call_target="mosaic_gpu', text)) == 2 * 2
    assert not re.findall(r"= (?:bf16|f16)\S+ (?:copy|copy-start|fusion|slice|concatenate|pad)\(", text)
    assert memory.alias_size_in_bytes == pages.size * pages.dtype.itemsize
    used = ptx.usage(printed.out + printed.err)["paged_decode"]
    assert used.spilled == 0
    # Of 65536 for as many warpgroups as there are: two workers, or one, and the one that loads.
    assert used.registers <= (168 if dim <= 128 else 255)
    block = ptx.loop(ptx.kernel(printed.out + printed.err, "paged_decode"), "wgmma.mma_async")
    assert block.count("bar.sync") == 0, "the step's own keys are beside the loop over pages"
