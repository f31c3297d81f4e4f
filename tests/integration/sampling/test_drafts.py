"""Rows that choose several tokens at once: what penalties count at each of them."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.sampling.drafts import each_draft
from jaxserve.sampling.options import STANDARD
from jaxserve.sampling.sampler import sample
from jaxserve.sampling.state import empty_state, load_row
from jaxserve.sampling.variants import asking, variants_of
from jaxserve.sampling.vocabulary import Vocabulary

from .builders import make_batch, penalized

VOCAB, ROWS, WIDTH = 12, 16, 4
VARIANTS = [asking(STANDARD), *(one for one in variants_of(STANDARD, straight=True) if one.name in ("penalized", "general"))]


load = jax.jit(load_row)


@partial(jax.jit, static_argnames="variant")
def choose(logits, tokens, batch, state, variant):
    return sample(logits, each_draft(batch, tokens), state, Vocabulary(VOCAB), variant)


@pytest.mark.parametrize("variant", VARIANTS, ids=["asking", "penalized", "general"])
@pytest.mark.parametrize(("presence", "frequency", "repetition"), [(1.5, 0, 1), (0, 0.7, 1), (0, 0, 1.8), (1, 0.5, 2)])
def test_penalties_count_the_drafts_before_each_token(presence, frequency, repetition, variant):
    rng = np.random.default_rng(4)
    logits = rng.standard_normal((ROWS, WIDTH, VOCAB)).astype(np.float32)
    tokens = rng.integers(0, VOCAB, (ROWS, WIDTH)).astype(np.int32)  # a last one that counts already, and drafts
    tokens[0] = tokens[0, 0]
    prompts, outputs = ([rng.integers(0, VOCAB, 3).tolist() for _ in range(ROWS)] for _ in range(2))
    state = empty_state(ROWS, VOCAB)
    for row in range(ROWS):
        counts = np.bincount([*outputs[row], tokens[row, 0]], minlength=VOCAB).astype(np.int32)
        seen = np.isin(np.arange(VOCAB), prompts[row])
        state = load(state, np.int32(row), counts, seen, np.zeros(VOCAB, np.float32))
    batch = make_batch(ROWS, temperature=0.0, presence=presence, frequency=frequency, repetition=repetition)
    got = choose(jnp.asarray(logits.reshape(-1, VOCAB)), jnp.asarray(tokens), batch, state, variant)
    wanted, without = [], []
    for row in range(ROWS):
        for place in range(WIDTH):
            output = [*outputs[row], *tokens[row, : 1 + place].tolist()]
            penalties = prompts[row], presence, frequency, repetition
            wanted.append(int(penalized(logits[row, place], output, *penalties).argmax()))
            without.append(int(penalized(logits[row, place], output[: len(output) - place], *penalties).argmax()))
    assert np.asarray(got).tolist() == wanted
    assert wanted != without
