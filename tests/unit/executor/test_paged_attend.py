"""Attention over pages is attention: the same as over a whole sequence at once, however many devices share the heads."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.config.kernels import AUTOMATIC
from jaxserve.config.windows import group_layers
from jaxserve.executor.step import PagedAttend
from jaxserve.models.attention import AttentionSpec
from jaxserve.step.batch import make_batch
from jaxserve.step.buckets import Bucket
from sharding import make_mesh
from tests.golden.reading import dense_attend
from tests.support.plans import make_plan

TOKENS, PAGE, HEADS, KV_HEADS, DIM = 11, 4, 4, 2, 8
SPEC = AttentionSpec(scale=0.3, window=7, soft_cap=2.0)


def paged(tensor, kv_pages, spec, *arguments):
    """One row of all tokens, in pages 1, 2 and 3; the last layer of two."""
    plan = make_plan((range(TOKENS), TOKENS, (1, 2, 3)))
    batch = make_batch(plan, Bucket(tokens=TOKENS + 1, rows=2), max_pages=3, page_size=PAGE, spare_slot=0).unpacked()
    padded = [x if x is None or x.ndim == 1 else jnp.pad(x, ((0, 1), (0, 0), (0, 0))) for x in arguments]

    @jax.jit
    def run(kv_pages, q, k, v, sinks):
        return PagedAttend(make_mesh(tensor), kv_pages, batch, AUTOMATIC, group_layers((None, None)))(1, q, k, v, spec, sinks)

    return run(kv_pages, *padded)[:TOKENS]


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("sinks", [None, jnp.array([-1.0, 0.0, 1.0, 3.0])], ids=["plain", "sinks"])
def test_keys_and_values(tensor, sinks):
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.standard_normal((TOKENS, heads, DIM)), jnp.float32) for heads in (HEADS, KV_HEADS, KV_HEADS))
    kv_pages = jnp.full((2, 5, 2, KV_HEADS, PAGE, DIM), jnp.nan)
    got = paged(tensor, kv_pages, SPEC, q, k, v, sinks)
    np.testing.assert_allclose(got, dense_attend(1, q, k, v, SPEC, sinks), atol=1e-6, rtol=0)


@pytest.mark.parametrize("tensor", [1, 2])
def test_latents(tensor):
    """Every device has the one latent of a token."""
    rng = np.random.default_rng(1)
    spec = replace(SPEC, value_dim=5)
    q, latent = (jnp.asarray(rng.standard_normal((TOKENS, heads, DIM)), jnp.float32) for heads in (HEADS, 1))
    kv_pages = jnp.full((2, 5, 1, tensor, PAGE, DIM), jnp.nan)
    got = paged(tensor, kv_pages, spec, q, jnp.repeat(latent, tensor, axis=1), None, None)
    assert got.shape == (TOKENS, HEADS, 5)
    np.testing.assert_allclose(got, dense_attend(1, q, latent, None, spec, None), atol=1e-6, rtol=0)


def test_groups_of_layers_have_pages_of_their_own():
    """Layers 0 and 2 see everything, 1 and 3 a window whose first page was given back; all pages are in one pool."""
    rng, groups = np.random.default_rng(2), group_layers((None, 5, None, 5))
    assert groups.places == ((0, 0), (1, 0), (0, 1), (1, 1))
    plan = make_plan((range(TOKENS), TOKENS, (1, 4, 2, 5, 3, 6)))
    later = make_plan((range(TOKENS, TOKENS + 1), TOKENS + 1, (1, 0, 2, 5, 3, 6)))
    sizes = {"max_pages": 3, "page_size": PAGE, "spare_slot": 0, "groups": 2}
    first, second = (make_batch(one, Bucket(tokens=one.num_tokens, rows=1), **sizes) for one in (plan, later))

    @jax.jit
    def run(kv_pages, batch, layers):
        attend, out = PagedAttend(make_mesh(1), kv_pages, batch.unpacked(), AUTOMATIC, groups), []
        for layer, (q, k, v) in enumerate(layers):
            spec = replace(SPEC, window=(None, 5, None, 5)[layer])
            out.append(attend(layer, q, k, v, spec, None))
        return attend.kv_pages, out

    layers = [
        tuple(jnp.asarray(rng.standard_normal((TOKENS + 1, heads, DIM)), jnp.float32) for heads in (HEADS, KV_HEADS, KV_HEADS))
        for _ in range(4)
    ]
    kv_pages = jnp.full((2, 7, 2, KV_HEADS, PAGE, DIM), jnp.nan)
    kv_pages, _ = run(kv_pages, first, [tuple(x[:TOKENS] for x in layer) for layer in layers])
    kv_pages = kv_pages.at[:, 4].set(jnp.nan)
    _, out = run(kv_pages, second, [tuple(x[TOKENS:] for x in layer) for layer in layers])
    for layer, got in enumerate(out):
        spec = replace(SPEC, window=(None, 5, None, 5)[layer])
        np.testing.assert_allclose(got, dense_attend(layer, *layers[layer], spec, None)[TOKENS:], atol=1e-6, rtol=0)
