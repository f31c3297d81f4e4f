import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.sampling import blocks
from jaxserve.sampling.blocks import BYTES, in_blocks
from jaxserve.sampling.options import STANDARD
from jaxserve.sampling.sampler import sample
from jaxserve.sampling.state import SamplerState
from jaxserve.sampling.variants import asking
from jaxserve.sampling.vocabulary import Vocabulary

from .builders import make_batch


@pytest.mark.parametrize(("count", "fit", "block"), [(1, 1, 1), (4, 4, 4), (8, 4, 4), (8, 9, 8), (6, 4, 3), (7, 4, 1), (3, 0, 1)])
def test_every_row_is_computed_once_and_few_at_a_time(count, fit, block):
    """`fit` rows fit into BYTES."""
    columns = BYTES // 4 // fit if fit else BYTES
    seen = []

    def function(logits, options):
        seen.append((logits.shape, options["scale"].shape, options["shift"].shape))
        return logits[:, :5] * options["scale"][:, None] + options["shift"]

    logits = jnp.zeros((count, columns)).at[:, :5].set(np.random.default_rng(0).normal(size=(count, 5)))
    options = {"scale": jnp.arange(count, dtype=jnp.float32), "shift": jnp.float32(3)}
    expected = function(logits, options)
    seen.clear()
    np.testing.assert_allclose(jax.jit(lambda *arguments: in_blocks(function, *arguments))(logits, options), expected, rtol=1e-6)
    assert seen == [((block, columns), (block,), ())]


def test_results_of_one_number_a_row():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(4, BYTES // 8)), jnp.float32)
    np.testing.assert_array_equal(in_blocks(lambda logits: jnp.argmax(logits, axis=1), logits), np.argmax(logits, axis=1))


def test_rows_of_every_kind_get_the_tokens_that_they_get_at_once(monkeypatch):
    rows, columns, rng = 6, 301, np.random.default_rng(0)
    batch = make_batch(
        rows,
        temperature=[0, 1, 0.7, 0, 2, 1],
        top_k=[0, 0, 9, 0, 40, 0],
        top_p=[1, 0.8, 1, 1, 0.5, 1],
        repetition=[1, 1, 1, 1.3, 1, 2],
        suppress=rng.integers(-1, columns, (rows, 3)),
        slots=[3, 0, 5, 1, 4, 2],
        seeds=range(rows),
        bias=[False, True, False, True, True, False],
    )
    state = SamplerState(
        jnp.asarray(rng.integers(0, 3, (rows + 1, columns)), jnp.int32),
        jnp.asarray(rng.random((rows + 1, columns)) < 0.3),
        jnp.asarray(rng.standard_normal((rows + 1, columns)), jnp.float32),
    )
    logits = jnp.asarray(rng.standard_normal((rows, columns)) * 2, jnp.float32)

    def choose(logits, batch):
        return sample(logits, batch, state, Vocabulary(columns), asking(STANDARD))

    monkeypatch.setattr(blocks, "BYTES", 2 * 4 * columns)
    chosen = jax.jit(lambda *arguments: in_blocks(choose, *arguments))(logits, batch)
    np.testing.assert_array_equal(chosen, jax.jit(choose)(logits, batch))
    assert len(set(chosen.tolist())) == rows
