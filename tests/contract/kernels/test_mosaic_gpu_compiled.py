"""The Mosaic GPU kernels compiled for an H100 on machines without a GPU: registers, shared memory, layouts, sizes of copies."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from jaxserve.aot.target import Target as CompileTarget
from jaxserve.executor.compile_cache import nothing_kept
from pallas_kernels.ragged_paged_attention import AttentionOptions, mosaic_gpu, mosaic_gpu_latent, ragged_paged_attention
from pallas_kernels.ragged_paged_attention.mosaic_gpu_tiles import HOPPER
from pallas_kernels.registry import Target
from tests.support.tiers import sampled

from . import ptx
from .needs import MOSAIC, PLUGIN

pytestmark = [MOSAIC, PLUGIN]

FLOAT8 = jnp.float8_e4m3fn
# What the interpreter cannot check: one shape of each kind of kernel, and in `make test-all` every shape.
QUANTIZED = pytest.mark.parametrize("kv_dtype", [FLOAT8, jnp.int8], ids=["float8", "int8"])
HEADS, KV_HEADS, PAGES_PER_ROW = 32, 8, 256


@pytest.fixture(scope="module")
def device():
    with nothing_kept():
        yield CompileTarget.parse("h100").devices()[0]


@pytest.fixture
def compiled(capfd, monkeypatch):
    """Compiles what was lowered, refuses kernels that spill more bytes, and returns the program and what was printed."""
    for what in ("PTX", "PTXAS"):
        monkeypatch.setenv(f"MOSAIC_GPU_DUMP_{what}", "1")

    def compile_and_check(lowered, most_spilled=0):
        program, printed = lowered.compile(), capfd.readouterr()
        text = printed.out + printed.err
        assert {name: used.spilled for name, used in ptx.usage(text).items() if used.spilled > most_spilled} == {}
        return program, text

    return compile_and_check


def lower(
    device,
    *,
    tokens,
    rows,
    dim,
    page_size=16,
    dtype=jnp.bfloat16,
    kv_dtype=None,
    scale_dtype=jnp.float32,
    sinks=False,
    function=ragged_paged_attention,
    **options,
):
    """Lower for a cache of 4 layers, in 8 bits with `kv_dtype`; the kernels are the ones that the op chooses for the device."""
    placed = partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(device))
    call = partial(function, layer=1, options=AttentionOptions(0.1, **options), target=Target.of(device))
    pages = (4, 512, 2, KV_HEADS, page_size, dim)
    return jax.jit(call).lower(
        placed((tokens, HEADS, dim), dtype),
        placed(pages, kv_dtype or dtype),
        placed((rows, PAGES_PER_ROW), jnp.int32),
        placed((rows + 1,), jnp.int32),
        placed((rows,), jnp.int32),
        kv_scales=None if kv_dtype is None else placed(pages[:5], scale_dtype),
        sinks=placed((HEADS,), jnp.float32) if sinks else None,
    )


def lower_latents(device, *, tokens, rows, heads, page_size=16, layers=1):
    """Lower layers of DeepSeek's latents, each of which attends with what the last one made."""
    placed = partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(device))

    def call(q, *arrays):
        for layer in range(layers):
            options = AttentionOptions(0.1, value_dim=512)
            attended = ragged_paged_attention(q, *arrays, layer=layer, options=options, target=Target.of(device))
            q = jnp.concatenate([attended, q[..., 512:]], axis=2)
        return q

    return jax.jit(call).lower(
        placed((tokens, heads, 576), jnp.bfloat16),
        placed((4, 512, 1, 1, page_size, 576), jnp.bfloat16),
        placed((rows, PAGES_PER_ROW), jnp.int32),
        placed((rows + 1,), jnp.int32),
        placed((rows,), jnp.int32),
    )


def kernels(lowered: jax.stages.Lowered) -> int:
    return lowered.as_text().count("mosaic_gpu_v2")


# Each head dim, dtype and page size at least once; all of them together take minutes: `python -m benchmarks.compile_kernels`.
@pytest.mark.parametrize(
    ("dim", "dtype", "page_size"),
    sampled(
        [
            (128, jnp.bfloat16, 16),
            (16, jnp.bfloat16, 16),
            (64, jnp.bfloat16, 16),
            (256, jnp.float16, 64),
            (80, jnp.bfloat16, 64),
            (96, jnp.float16, 32),
            (128, jnp.float16, 8),
            (256, jnp.bfloat16, 16),
        ],
        3,
    ),
)
def test_mixed_batches(device, compiled, dim, dtype, page_size):
    lowered = lower(device, tokens=256, rows=8, dim=dim, dtype=dtype, page_size=page_size)
    assert kernels(lowered) == 3  # decode, what merges it, and prefill
    compiled(lowered)


@QUANTIZED
@pytest.mark.parametrize(
    ("dim", "dtype", "page_size", "scale_dtype"),
    sampled(
        [
            (128, jnp.bfloat16, 8, jnp.bfloat16),
            (64, jnp.bfloat16, 64, jnp.float32),
            (80, jnp.bfloat16, 16, jnp.float32),
            (96, jnp.float16, 32, jnp.bfloat16),
            (256, jnp.bfloat16, 16, jnp.float32),
        ],
        4,
    ),
)
def test_mixed_batches_in_8_bits(device, compiled, dim, dtype, page_size, scale_dtype, kv_dtype):
    sizes = {"tokens": 256, "rows": 8, "dim": dim, "page_size": page_size}
    lowered = lower(device, dtype=dtype, kv_dtype=kv_dtype, scale_dtype=scale_dtype, **sizes)
    assert kernels(lowered) == 3
    compiled(lowered, most_spilled=16 if dim == 256 else 0)


@pytest.mark.extended
@pytest.mark.parametrize("kv_dtype", [None, FLOAT8, jnp.int8], ids=["bfloat16", "float8", "int8"])
def test_decodes_of_wide_heads(device, compiled, kv_dtype):
    compiled(lower(device, tokens=64, rows=64, dim=256, kv_dtype=kv_dtype))


@pytest.mark.parametrize("kv_dtype", sampled([FLOAT8, None, jnp.int8], 3), ids=["float8", "bfloat16", "int8"])
def test_decodes_with_every_option(device, compiled, kv_dtype):
    lowered = lower(device, tokens=64, rows=64, dim=128, kv_dtype=kv_dtype, window=1024, soft_cap=30.0, sinks=True)
    assert kernels(lowered) == 2
    program, _ = compiled(lowered)
    # The cache is read where it lies: what is made is small next to it.
    assert program.memory_analysis().temp_size_in_bytes < 16e6


@pytest.mark.parametrize(
    ("page_size", "kv_dtype", "barriers"), [(16, None, 0), (64, None, 0), (16, FLOAT8, 2), (16, jnp.int8, 2)]
)
def test_warps_of_a_decode_meet_only_where_numbers_are_widened(device, compiled, page_size, kv_dtype, barriers):
    _, printed = compiled(lower(device, tokens=64, rows=64, dim=128, page_size=page_size, kv_dtype=kv_dtype))
    text = ptx.kernel(printed, "paged_decode")
    block = ptx.loop(text, "wgmma.mma_async")
    assert block.count("wgmma.mma_async") == 8 + 4  # 16 of D, or of the keys, each
    assert block.count("bar.sync") == barriers
    loading = text.partition("setmaxnreg.dec")[2]
    assert loading.count("cp.async.bulk") == (2 if kv_dtype is None else 4) * 64 // page_size
    assert "bar.sync" not in loading
    for used in ptx.usage(printed).values():
        assert used.registers <= 168  # of 65536 for three warpgroups


@pytest.mark.parametrize(("dim", "kv_dtype"), sampled([(128, None), (64, None), (256, None), (128, FLOAT8), (128, jnp.int8)], 3))
def test_a_softmax_of_a_prefill_shares_the_time_with_a_product(device, compiled, dim, kv_dtype):
    _, printed = compiled(lower(device, tokens=256, rows=8, dim=dim, kv_dtype=kv_dtype))
    assert "are serialized" not in printed  # ptxas's word for products that it lets run one by one
    text = ptx.kernel(printed, "paged_prefill")
    between, waits = (
        re.split(r"wgmma\.wait_group\.sync\.aligned \d;", text),
        re.findall(r"wgmma\.wait_group\.sync\.aligned (\d);", text),
    )
    loops = [number for number, wait in enumerate(waits) if wait == "1"]
    assert len(loops) == 2  # without and with a mask
    for number in loops:
        # The scores of a block of keys, and the values of the one before; what both read is not given back until then.
        products = between[number][between[number].index("mma_async") :]
        assert "m64n64k16" in products
        assert f"m64n{dim}k16" in products
        assert "mbarrier.arrive" not in products
        beside = between[number + 1].partition("mma_async")[0]
        assert beside.count("ex2") == 64 * 64 // 128 + 2  # a weight each, and the factors of two rows


def layer_operations(device, layers):
    """Operations of XLA's program for so many layers of a decode, each fed by the one before."""

    def step(q, *arrays, layer, **options):
        for index in range(layers):
            q = ragged_paged_attention(q, *arrays, layer=index, **options)
        return q

    text = lower(device, tokens=64, rows=64, dim=128, function=step).compile().as_text()
    return sum(f" {operation}(" in line for line in text.splitlines() for operation in ("fusion", "custom-call", "copy"))


def test_the_work_list_is_made_once_a_step(device):
    # The two kernels: the heads of two KV heads are a tile as they lie.
    assert layer_operations(device, 4) - layer_operations(device, 3) == 2


def test_layers_share_their_kernels(device):
    def both(*arrays, layer, **options):
        return [ragged_paged_attention(*arrays, layer=each, **options) for each in (0, 3)]

    assert kernels(lower(device, tokens=8, rows=8, dim=64, function=both)) == 2


def test_too_large_a_block_is_refused(device, monkeypatch):
    monkeypatch.setattr(mosaic_gpu, "HOPPER", replace(HOPPER, decode_bytes=300 * 1024))
    with pytest.raises(ValueError, match="exceeds available shared memory"):
        lower(device, tokens=8, rows=8, dim=256)


def launches(compiled: jax.stages.Compiled) -> int:
    """Kernels that the program's own computation starts, loops not counted: it must have none."""
    text = compiled.as_text() or ""
    entry = text[text.index("\nENTRY") :]
    assert " while(" not in entry
    return len(re.findall(r" (?:fusion|custom-call|copy|scatter|sort|gather|reduce|concatenate|pad)\(", entry))


@pytest.mark.parametrize(("tokens", "rows", "heads"), [(8, 8, 128), (128, 8, 16)], ids=["decodes", "prompts"])
def test_a_layer_of_latents_launches_two_kernels(device, tokens, rows, heads):
    one, three = (lower_latents(device, tokens=tokens, rows=rows, heads=heads, layers=layers).compile() for layers in (1, 3))
    # Two, and the concatenation that stands for the layer's projections. What is planned is planned once.
    assert launches(three) - launches(one) <= 2 * 3


@pytest.mark.parametrize(("dim", "slots"), [(576, 2), (320, 4), (96, 4)])
def test_blocks_of_latents_in_shared_memory(dim, slots):
    assert mosaic_gpu_latent.key_slots(dim, 2) == slots


@pytest.mark.parametrize(("heads", "rows"), [(4, 8), (16, 16), (20, 32), (64, 64), (72, 128), (128, 128)])
def test_rows_of_a_token(heads, rows):
    assert mosaic_gpu_latent.padded_heads(heads) == rows


@pytest.mark.parametrize(("heads", "page_size"), [(16, 16), (128, 64), (20, 32)])
def test_latents_fit_the_registers(device, compiled, heads, page_size):
    """Shared memory is bounded by the compilation."""
    program, printed = compiled(lower_latents(device, tokens=16, rows=8, heads=heads, page_size=page_size))
    assert ptx.usage(printed)["paged_latent"].registers * 4 * 128 <= 65536  # four warpgroups start with as many each
    # The cache and the queries are read where they lie.
    assert program.memory_analysis().temp_size_in_bytes < 64e6
