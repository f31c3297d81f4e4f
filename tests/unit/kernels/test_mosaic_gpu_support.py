"""What the Mosaic GPU attention says it can do, and the sizes that it picks: nothing is traced."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels import hopper
from pallas_kernels.parity.features import ATTENTION
from pallas_kernels.ragged_paged_attention import mosaic_gpu_support as support
from pallas_kernels.ragged_paged_attention.implementations import IMPLEMENTATIONS
from pallas_kernels.ragged_paged_attention.mosaic_gpu_tiles import HOPPER, decode_slots, decode_splits, prefill_slots
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
        {"window": 5, "soft_cap": 3.0, "sinks": True},
        {"kv_dtype": FLOAT8, "scales_dtype": jnp.dtype("float32")},
        {"dtype": jnp.dtype("float16"), "kv_dtype": FLOAT8, "scales_dtype": jnp.dtype("float16")},
    ],
)
def test_supported(change):
    assert support.supports(replace(ATTENTION, **change)) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": jnp.dtype("float32")}, "queries must be bfloat16 or float16, not float32"),
        ({"dtype": jnp.dtype("float32"), "kv_dtype": FLOAT8}, "queries must be bfloat16 or float16, not float32"),
        ({"kv_dtype": jnp.dtype("float16")}, "the cache must have the queries' bfloat16 or float8_e4m3fn, not float16"),
        ({"page_size": 128}, "pages must have 8, 16, 32 or 64 tokens, not 128"),
        ({"head_dim": 100}, "the head dim must be a multiple of 16 up to 256, not 100"),
        ({"head_dim": 272}, "the head dim must be a multiple of 16 up to 256, not 272"),
        ({"heads": 520}, "a KV head can have 64 query heads at most, not 65"),
        ({"value_dim": 64}, "it reads values, and this cache has none beside its keys"),
    ],
)
def test_not_supported(change, reason):
    assert support.supports(replace(ATTENTION, **change)) == reason


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
        (16, (6, 6), (6, 6)),
        (64, (6, 5), (6, 6)),
        (80, (5, 4), (6, 6)),
        (96, (4, 3), (5, 5)),
        (128, (3, 2), (3, 3)),
        (192, (4, 3), (6, 5)),
        (256, (3, 2), (3, 3)),
    ],
)
def test_decode_slots(dim, slots, float8):
    assert decode_slots(dim, 2, HOPPER) == slots
    assert decode_slots(dim, 1, HOPPER) == float8


def test_rows_are_split_until_the_gpu_is_full():
    assert decode_splits(64, 8, 4096, HOPPER) == 2
    assert decode_splits(64, 1, 4096, HOPPER) == 16
    assert decode_splits(1, 8, 32768, HOPPER) == 128  # not 132: no part is shorter than 256 keys
    assert decode_splits(1, 8, 100, HOPPER) == 1
    assert decode_splits(256, 8, 4096, HOPPER) == 1


@pytest.mark.parametrize(("dim", "slots", "float8"), [(64, 4, 4), (128, 4, 4), (192, 3, 2), (256, 2, 1)])
def test_prefill_slots(dim, slots, float8):
    assert prefill_slots(dim, 2, HOPPER) == (slots, 0)
    assert prefill_slots(dim, 1, HOPPER) == (float8, 2)
