"""What the Mosaic GPU attention says it can do, and the sizes that it picks: nothing is traced."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels import hopper
from pallas_kernels.parity.features import ATTENTION
from pallas_kernels.ragged_paged_attention import AttentionOptions
from pallas_kernels.ragged_paged_attention import mosaic_gpu_support as support
from pallas_kernels.ragged_paged_attention.implementations import IMPLEMENTATIONS
from pallas_kernels.ragged_paged_attention.mosaic_gpu_tiles import HOPPER, decode_slots, merge_depth, prefill_slots
from pallas_kernels.registry import Target, choose

FLOAT8 = jnp.dtype(jnp.float8_e4m3fn)
H100 = Target("gpu", (9, 0))
new_jax = pytest.mark.skipif(jax.__version_info__ < hopper.OLDEST_JAX, reason="NOT CHECKED: Mosaic GPU kernels need jax 0.11.2")


def named(function):
    return next(entry.name for entry in IMPLEMENTATIONS if entry.function is function)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"head_dim": 80},
        {"head_dim": 256},
        {"page_size": 64},
        {"heads": 512},
        {"options": AttentionOptions(0.1, window=5, soft_cap=3.0), "sinks": True},
        {"kv_dtype": FLOAT8, "scales_dtype": jnp.dtype("float32")},
        {"dtype": jnp.dtype("float16"), "kv_dtype": FLOAT8, "scales_dtype": jnp.dtype("bfloat16")},
        {"kv_dtype": jnp.dtype("int8"), "scales_dtype": jnp.dtype("bfloat16")},
    ],
)
def test_supported(change):
    assert support.supports(replace(ATTENTION, **change)) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": jnp.dtype("float32")}, "queries must be bfloat16 or float16, not float32"),
        ({"dtype": jnp.dtype("float32"), "kv_dtype": FLOAT8}, "queries must be bfloat16 or float16, not float32"),
        ({"kv_dtype": jnp.dtype("float16")}, "the cache must have the queries' bfloat16, or be quantized, not float16"),
        ({"page_size": 128}, "pages must have 8, 16, 32 or 64 tokens, not 128"),
        ({"head_dim": 100}, "the head dim must be a multiple of 16 up to 256, not 100"),
        ({"head_dim": 272}, "the head dim must be a multiple of 16 up to 256, not 272"),
        ({"heads": 520}, "a KV head can have 64 query heads at most, not 65"),
    ],
)
def test_not_supported(change, reason):
    assert support.supports(replace(ATTENTION, **change)) == reason


LATENTS = replace(ATTENTION, kv_heads=1, head_dim=576, options=AttentionOptions(0.1, value_dim=512))


@pytest.mark.parametrize("heads", [4, 16, 20, 64, 128])
def test_latents(heads):
    assert support.supports(replace(LATENTS, heads=heads)) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": jnp.dtype("float32")}, "queries must be bfloat16 or float16, not float32"),
        (
            {"kv_dtype": FLOAT8, "scales_dtype": jnp.dtype("float32")},
            "latents must have the queries' bfloat16, not float8_e4m3fn",
        ),
        ({"page_size": 128}, "pages must have 8, 16, 32 or 64 tokens, not 128"),
        ({"kv_heads": 2}, "latents must be one a token on each device, not 2"),
        ({"head_dim": 640}, "a latent must be a multiple of 16 numbers up to 576, not 640"),
        (
            {"options": AttentionOptions(0.1, value_dim=40)},
            "the value of a latent must be a multiple of 32 numbers up to 512, not 40",
        ),
        (
            {"options": AttentionOptions(0.1, value_dim=544)},
            "the value of a latent must be a multiple of 32 numbers up to 512, not 544",
        ),
        ({"options": AttentionOptions(0.1, window=9, value_dim=512)}, "over latents it computes no window, soft cap or sinks"),
        ({"sinks": True}, "over latents it computes no window, soft cap or sinks"),
    ],
)
def test_latents_not_supported(change, reason):
    assert support.supports(replace(LATENTS, **change)) == reason


@new_jax
@pytest.mark.parametrize("target", [Target("gpu", (8, 0)), Target("gpu", (10, 0)), Target("gpu"), Target("cpu")], ids=str)
def test_only_hopper(target):
    assert "compute capability 9.0" in str(hopper.runs_on(target))
    assert hopper.runs_on(H100) is None


@new_jax
def test_picked_on_hopper_and_interpreted_only_by_name():
    assert named(choose("attention", IMPLEMENTATIONS, None, H100, ATTENTION)) == "mosaic_gpu"
    half = replace(ATTENTION, dtype=jnp.dtype(jnp.float16), kv_dtype=jnp.dtype(jnp.float16))  # with no native kernel
    assert named(choose("attention", IMPLEMENTATIONS, None, Target("cpu"), half)) == "xla"
    assert (
        named(choose("attention", IMPLEMENTATIONS, "mosaic_gpu_interpreted", Target("cpu"), ATTENTION))
        == "mosaic_gpu_interpreted"
    )
    with pytest.raises(ValueError, match="interpreted on CPUs"):
        choose("attention", IMPLEMENTATIONS, "mosaic_gpu_interpreted", H100, ATTENTION)


def test_a_named_kernel_that_cannot_says_what_it_supports():
    with pytest.raises(ValueError, match=r"page|jax") as error:
        choose("attention", IMPLEMENTATIONS, "mosaic_gpu", H100, replace(ATTENTION, page_size=128))
    assert "multiples of 16 up to 256" in str(error.value)


@pytest.mark.parametrize(
    ("dim", "slots", "float8"),
    [
        (16, (2, 6, 6), (2, 6, 6)),
        (64, (2, 6, 6), (2, 6, 6)),
        (80, (2, 5, 4), (2, 6, 6)),
        (96, (2, 4, 3), (2, 5, 5)),
        (128, (2, 3, 2), (2, 3, 2)),
        (192, (1, 4, 3), (1, 6, 5)),
        (256, (1, 3, 2), (1, 3, 3)),
    ],
)
def test_decode_slots(dim, slots, float8):
    assert decode_slots(dim, 2, HOPPER) == slots
    assert decode_slots(dim, 1, HOPPER) == float8


def test_blocks_that_merge_read_ahead_where_there_are_few():
    assert [merge_depth(blocks, 128, HOPPER) for blocks in (1, 132, 133, 512)] == [4, 4, 1, 1]
    assert [merge_depth(8, dim, HOPPER) for dim in (64, 192, 256)] == [4, 3, 2]


@pytest.mark.parametrize(("dim", "slots", "float8"), [(64, 4, 4), (128, 4, 4), (192, 3, 2), (256, 2, 1)])
def test_prefill_slots(dim, slots, float8):
    assert prefill_slots(dim, 2, HOPPER) == (slots, 0)
    assert prefill_slots(dim, 1, HOPPER) == (float8, 2)


@new_jax
@pytest.mark.parametrize("loading", [32, 40, 72])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_warpgroups_share_what_their_block_was_launched_with(groups, loading):
    """Whoever asks for one more waits forever."""
    from pallas_kernels import mosaic

    launched = 2**16 // (128 * (groups + 1)) // 8 * 8
    registers = mosaic.divide_registers(groups, loading)
    if groups == 1:
        assert registers is None
        assert launched > 248
    else:
        assert registers is not None
        assert registers.loading + groups * registers.computing <= (groups + 1) * launched
        assert registers.loading < launched < registers.computing
        assert registers.computing % 8 == registers.loading % 8 == 0
