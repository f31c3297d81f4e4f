"""The sampler's state: rows loaded, tokens counted, in place."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.sampling.options import STANDARD
from jaxserve.sampling.sampler import sample
from jaxserve.sampling.state import empty_state, load_row, record_tokens
from jaxserve.sampling.variants import asking
from jaxserve.sampling.vocabulary import Vocabulary

from .builders import make_batch


def test_load_row_replaces_one_slot():
    state = empty_state(3, 5)
    counts, seen = jnp.asarray([0, 1, 2, 0, 0], jnp.int32), jnp.asarray([True, False, False, False, True])
    bias = jnp.asarray([0.0, -1.0, 0.0, 0.0, -jnp.inf])
    state = jax.jit(load_row, donate_argnums=0)(state, jnp.int32(2), counts, seen, bias)
    np.testing.assert_array_equal(state.output_counts[2], counts)
    np.testing.assert_array_equal(state.in_prompt[2], seen)
    np.testing.assert_array_equal(state.bias[2], bias)
    for table in (state.output_counts, state.in_prompt, state.bias):
        assert not np.asarray(table)[[0, 1, 3]].any()


def test_record_tokens_counts_each_row_once():
    state = empty_state(3, 5)
    slots, tokens = jnp.asarray([2, 0, 3, 3], jnp.int32), jnp.asarray([4, 1, 1, 1], jnp.int32)
    for _ in range(2):
        state = record_tokens(state, slots, tokens, Vocabulary(5))
    want = np.zeros((3, 5), np.int32)
    want[2, 4] = want[0, 1] = 2
    np.testing.assert_array_equal(state.output_counts[:3], want)


def test_a_step_does_not_copy_the_state():
    rows, vocab, slots = 4, 512, 64

    def step(logits, batch, state):
        tokens = sample(logits, batch, state, Vocabulary(vocab), asking(STANDARD))
        return tokens, record_tokens(state, batch.slot, tokens, Vocabulary(vocab))

    arguments = (jnp.zeros((rows, vocab)), make_batch(rows), empty_state(slots, vocab))
    text = jax.jit(step, donate_argnums=2).lower(*arguments).compile().as_text()
    table = f"[{slots + 1},{vocab}]"
    assert text is not None
    copies = [line for line in text.splitlines() if " copy(" in line and table in line.split(" copy(")[0]]
    assert not copies
    assert "input_output_alias" in text
