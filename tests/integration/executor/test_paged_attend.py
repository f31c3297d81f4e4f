"""Attention over pages is attention: the same as over a whole sequence at once, however many devices share the heads."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.aot.target import Target
from jaxserve.config.kernels import AUTOMATIC, LayerRange
from jaxserve.config.windows import LayerGroups, group_layers
from jaxserve.executor.cache_arrays import CacheArrays
from jaxserve.executor.paged_attention import PagedAttend
from jaxserve.models.dense_attention import dense_attend
from jaxserve.models.positions import RopeConfig
from jaxserve.models.rope import rotation
from jaxserve.step.buckets import Bucket
from pallas_kernels.ragged_paged_attention import AttentionOptions
from pallas_kernels.rotate_and_write import rotate
from sharding import make_mesh
from tests.contract.kernels.needs import MOSAIC, PLUGIN
from tests.support.one_program import at_once
from tests.support.plans import device_batch, make_plan

TOKENS, PAGE, HEADS, KV_HEADS, DIM = 11, 4, 4, 2, 8
OPTIONS = AttentionOptions(scale=0.3, window=7, soft_cap=2.0)


def paged(tensor, cache, options, q, k, v, sinks, rope=None, kernels=AUTOMATIC):
    """One row of all tokens, in pages 1, 2 and 3; the last layer of two."""
    plan = make_plan((range(TOKENS), TOKENS, (1, 2, 3)))
    batch = device_batch(plan, Bucket(tokens=TOKENS + 1, rows=2), page_size=PAGE, max_pages=3)
    padded = jax.tree.map(lambda x: np.pad(x, ((0, 1), *[(0, 0)] * (x.ndim - 1)), constant_values=np.nan), (q, k, v, rope))

    @jax.jit
    def run(cache, q, k, v, rope, sinks):
        attend = PagedAttend(make_mesh(tensor), cache, batch, kernels, group_layers((None, None)))
        return attend(1, q, k, v, rope, options, sinks)

    attended = run(cache if isinstance(cache, CacheArrays) else CacheArrays(cache), *padded, sinks)
    return np.asarray(attended)[:TOKENS]


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("sinks", [None, np.array([-1.0, 0.0, 1.0, 3.0], np.float32)], ids=["plain", "sinks"])
def test_keys_and_values(tensor, sinks):
    rng = np.random.default_rng(0)
    q, k, v = (np.asarray(rng.standard_normal((TOKENS, heads, DIM)), np.float32) for heads in (HEADS, KV_HEADS, KV_HEADS))
    kv_pages = jnp.full((2, 5, 2, KV_HEADS, PAGE, DIM), jnp.nan)
    got = paged(tensor, kv_pages, OPTIONS, q, k, v, sinks)
    np.testing.assert_allclose(got, at_once(dense_attend, 1, q, k, v, None, OPTIONS, sinks), atol=1e-6, rtol=0)


ONE_KERNEL = replace(AUTOMATIC, kv_write=(LayerRange("mosaic_gpu_interpreted", 0, None),))


# Pallas's interpreter knows one device.
@pytest.mark.parametrize(("tensor", "kernels"), [(1, AUTOMATIC), (2, AUTOMATIC), pytest.param(1, ONE_KERNEL, marks=MOSAIC)])
def test_rotates_queries_and_keys(tensor, kernels):
    rng = np.random.default_rng(3)
    q, k, v = (np.asarray(rng.standard_normal((TOKENS, heads, 64)), np.float32) for heads in (HEADS, KV_HEADS, KV_HEADS))
    rope = at_once(rotation, RopeConfig(rotated_dims=32), 64, np.arange(TOKENS, dtype=np.int32) + 5)
    got = paged(tensor, jnp.full((2, 5, 2, KV_HEADS, PAGE, 64), jnp.nan), OPTIONS, q, k, v, None, rope, kernels)
    np.testing.assert_allclose(got, at_once(dense_attend, 1, q, k, v, rope, OPTIONS, None), atol=2e-6, rtol=0)


@pytest.mark.parametrize("kernels", [AUTOMATIC, pytest.param(ONE_KERNEL, marks=MOSAIC)])
def test_a_named_kernel_of_kv_write_quantizes_what_was_rotated(kernels):
    rng = np.random.default_rng(4)
    q, k, v = (np.asarray(rng.standard_normal((TOKENS, heads, 64)), np.float32) for heads in (HEADS, KV_HEADS, KV_HEADS))
    rope = at_once(rotation, RopeConfig(rotated_dims=32), 64, np.arange(TOKENS, dtype=np.int32) + 5)
    shape = (2, 5, 2, KV_HEADS, PAGE, 64)
    cache = CacheArrays(jnp.full(shape, 0x7F, jnp.uint8), jnp.full(shape[:5], jnp.nan, jnp.bfloat16))
    got = paged(1, cache, OPTIONS, q, k, v, None, rope, kernels)

    def rounded(x):
        scale = (jnp.abs(x).max(axis=-1, keepdims=True) / 448).astype(jnp.bfloat16).astype(jnp.float32)
        return (x / scale).astype(jnp.float8_e4m3fn).astype(jnp.float32) * scale

    def whole(q, k, v, rope):
        return dense_attend(1, rotate(q, rope), rounded(rotate(k, rope)), rounded(v), None, OPTIONS, None)

    want = at_once(whole, q, k, v, rope)
    np.testing.assert_allclose(got, want, atol=2e-6, rtol=0)


NAMED = LayerRange("mosaic_gpu", 0, None)


@MOSAIC
@PLUGIN
@pytest.mark.parametrize(
    ("kernels", "turned_apart"),
    [
        (AUTOMATIC, False),
        (replace(AUTOMATIC, kv_write=(NAMED,)), True),
        (replace(AUTOMATIC, attention=(NAMED,)), True),
        (replace(AUTOMATIC, attention=(replace(NAMED, last=0),)), False),  # another layer's
    ],
)
def test_a_decode_step_on_a_gpu_turns_in_its_attention_unless_a_kernel_is_named(kernels, turned_apart):
    plan = make_plan((range(3), 3, (1,)), (range(6), 6, (2,)))
    batch = device_batch(plan, Bucket(tokens=9, rows=9), page_size=16, max_pages=3)
    mesh = make_mesh(1, Target.parse("h100").devices())
    q, k = (jnp.zeros((9, heads, 64), jnp.bfloat16) for heads in (8, 2))
    rope = rotation(RopeConfig(rotated_dims=64), 64, jnp.arange(9))

    def run(kv_pages):
        return PagedAttend(mesh, CacheArrays(kv_pages), batch, kernels, group_layers((None, None)))(
            1, q, k, k, rope, OPTIONS, None
        )

    traced = str(jax.make_jaxpr(run)(jnp.zeros((2, 5, 2, 2, 16, 64), jnp.bfloat16)))
    assert ("name=rotate_and_write" in traced) == turned_apart
    assert "name=paged_decode" in traced


@pytest.mark.parametrize("tensor", [1, 2])
def test_latents(tensor):
    """Every device has the one latent of a token."""
    rng = np.random.default_rng(1)
    options = replace(OPTIONS, value_dim=5)
    q, latent = (np.asarray(rng.standard_normal((TOKENS, heads, DIM)), np.float32) for heads in (HEADS, 1))
    kv_pages = jnp.full((2, 5, 1, tensor, PAGE, DIM), jnp.nan)
    got = paged(tensor, kv_pages, options, q, np.repeat(latent, tensor, axis=1), None, None)
    assert got.shape == (TOKENS, HEADS, 5)
    np.testing.assert_allclose(got, at_once(dense_attend, 1, q, latent, None, None, options, None), atol=1e-6, rtol=0)


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize(("kv_heads", "dim"), [(2, 16), (4, 8), (2, 8), (4, 4)])
def test_layers_whose_heads_differ_have_the_beginnings_of_their_pages(tensor, kv_heads, dim):
    """The cache's have 2 heads of 16: as many numbers in heads of another size, and half of them."""
    rng = np.random.default_rng(5)
    q, k, v = (np.asarray(rng.standard_normal((TOKENS, heads, dim)), np.float32) for heads in (HEADS, kv_heads, kv_heads))
    got = paged(tensor, jnp.full((2, 5, 2, 2, PAGE, 16), jnp.nan), OPTIONS, q, k, v, None)
    np.testing.assert_allclose(got, at_once(dense_attend, 1, q, k, v, None, OPTIONS, None), atol=1e-6, rtol=0)


def test_layers_that_attend_to_the_same_store_it_once():
    """Layer 1 reads what layer 0 has stored, and what it is given itself goes nowhere."""
    rng, groups = np.random.default_rng(6), group_layers((None,)).read_by((0, 0))
    assert groups == LayerGroups((None,), ((0, 0), (0, 0)), 1)
    q, k, v = (np.asarray(rng.standard_normal((TOKENS, heads, DIM)), np.float32) for heads in (HEADS, KV_HEADS, KV_HEADS))
    plan = make_plan((range(TOKENS), TOKENS, (1, 2, 3)))
    batch = device_batch(plan, Bucket(tokens=TOKENS, rows=1), page_size=PAGE, max_pages=3)

    @jax.jit
    def run(pages, q, k, v):
        attend = PagedAttend(make_mesh(1), CacheArrays(pages), batch, AUTOMATIC, groups)
        return attend(0, q, k, v, None, OPTIONS, None), attend(1, 2 * q, k * jnp.nan, v * jnp.nan, None, OPTIONS, None)

    first, second = run(np.full((1, 4, 2, KV_HEADS, PAGE, DIM), np.nan, np.float32), q, k, v)
    np.testing.assert_allclose(first, at_once(dense_attend, 0, q, k, v, None, OPTIONS, None), atol=1e-6, rtol=0)
    np.testing.assert_allclose(second, at_once(dense_attend, 1, 2 * q, k, v, None, OPTIONS, None), atol=1e-6, rtol=0)


def test_groups_of_layers_have_pages_of_their_own():
    """Layers 0 and 2 see everything, 1 and 3 a window whose first page was given back; all pages are in one pool."""
    rng, groups = np.random.default_rng(2), group_layers((None, 5, None, 5))
    assert groups.places == ((0, 0), (1, 0), (0, 1), (1, 1))
    plan = make_plan((range(TOKENS), TOKENS, (1, 4, 2, 5, 3, 6)))
    later = make_plan((range(TOKENS, TOKENS + 1), TOKENS + 1, (1, 0, 2, 5, 3, 6)))
    first, second = (
        device_batch(one, Bucket(tokens=one.num_tokens, rows=1), page_size=PAGE, max_pages=3, groups=2) for one in (plan, later)
    )

    @jax.jit
    def run(kv_pages, batch, layers):
        attend, out = PagedAttend(make_mesh(1), CacheArrays(kv_pages), batch, AUTOMATIC, groups), []
        for layer, (q, k, v) in enumerate(layers):
            options = replace(OPTIONS, window=(None, 5, None, 5)[layer])
            out.append(attend(layer, q, k, v, None, options, None))
        return attend.cache.stored, out

    layers = [
        tuple(np.asarray(rng.standard_normal((TOKENS + 1, heads, DIM)), np.float32) for heads in (HEADS, KV_HEADS, KV_HEADS))
        for _ in range(4)
    ]
    kv_pages = jnp.full((2, 7, 2, KV_HEADS, PAGE, DIM), jnp.nan)
    kv_pages, _ = run(kv_pages, first, [tuple(x[:TOKENS] for x in layer) for layer in layers])
    written = np.array(kv_pages)
    written[:, 4] = np.nan
    _, out = run(written, second, [tuple(x[TOKENS:] for x in layer) for layer in layers])
    for layer, got in enumerate(out):
        options = replace(OPTIONS, window=(None, 5, None, 5)[layer])
        q, k, v = layers[layer]
        np.testing.assert_allclose(got, at_once(dense_attend, layer, q, k, v, None, options, None)[TOKENS:], atol=1e-6, rtol=0)
