"""Page copies against numpy, split into calls of fixed width."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding

from jaxserve.executor.copies import COPY_WIDTH, copy_batches, make_copy
from jaxserve.executor.step import KV_PAGES
from sharding.mesh import make_mesh

PAGES = 100


@pytest.fixture(scope="module", params=[1, 2])
def cache(request):
    """A cache of distinct values, and the copy program."""
    mesh = make_mesh(request.param)
    values = np.arange(2 * PAGES * 2 * 2 * 3 * 4, dtype=np.float32).reshape(2, PAGES, 2, 2, 3, 4)
    return values, NamedSharding(mesh, KV_PAGES), jax.jit(make_copy(mesh))


@settings(deadline=None, max_examples=20)
@given(data=st.data(), pairs=st.integers(1, 3 * COPY_WIDTH))
def test_copies_against_numpy(cache, data, pairs):
    values, placed, copy = cache
    order = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1))).permutation(np.arange(1, PAGES))
    sources, destinations = order[:pairs], order[pairs : 2 * pairs]
    sources = sources[data.draw(st.lists(st.integers(0, pairs - 1), min_size=pairs, max_size=pairs))]
    pages = jax.device_put(jnp.asarray(values), placed)
    batches = list(copy_batches(list(zip(sources.tolist(), destinations.tolist(), strict=True))))
    assert len(batches) == -(-pairs // COPY_WIDTH)
    for batch in batches:
        assert [array.shape for array in batch] == [(COPY_WIDTH,)] * 2
        pages = copy(pages, *batch)
    expected = values.copy()
    expected[:, destinations] = values[:, sources]
    np.testing.assert_array_equal(np.asarray(pages), expected)


def test_all_sources_are_read_first(cache):
    values, placed, copy = cache
    (batch,) = copy_batches([(1, 2), (2, 3), (3, 1)])
    pages = np.asarray(copy(jax.device_put(jnp.asarray(values), placed), *batch))
    np.testing.assert_array_equal(pages[:, 1:4], values[:, [3, 1, 2]])


def test_a_page_that_an_earlier_call_overwrote_is_an_error():
    copies = [(50, 60), *((1, destination) for destination in range(2, COPY_WIDTH + 1))]
    assert len(list(copy_batches([*copies, (50, 90)]))) == 2
    with pytest.raises(ValueError, match="page 60 is copied after another page was copied to it"):
        list(copy_batches([*copies, (60, 90)]))
