"""What rows with drafts choose is distributed as the model says: the first and the second token of many draws, enumerated.

The model is a table: what follows depends on the token before. Every draw is a row with one draft and a seed of its own; where
the draft is right the second token comes from the same step, else from the next.
"""

from dataclasses import replace
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.sampling.drafts import each_draft, num_chosen
from jaxserve.sampling.options import STANDARD
from jaxserve.sampling.sampler import sample
from jaxserve.sampling.state import empty_state
from jaxserve.sampling.variants import asking
from jaxserve.sampling.vocabulary import Vocabulary
from tests.support.tiers import tiered

from .builders import make_batch, probabilities

VOCAB = 5
DRAWS = 200_000
AT_ONCE = 50_000
UNLIKELY = 60.0  # more than chi-square of 24 degrees of freedom has in one of 10,000 runs, for whatever the truth allows

FIRST = np.array([1.0, 0.2, -0.5, 0.7, -1.5], np.float32)  # logits
SECOND = (np.random.default_rng(1).standard_normal((VOCAB, VOCAB)) * 1.2).astype(np.float32)  # by the token before

RULES = [{}, {"temperature": 0.6}, {"top_k": 3, "temperature": 1.7}, {"top_p": 0.8, "min_p": 0.1}]
DRAFTS = {
    "good": lambda rng, params: rng.choice(VOCAB, AT_ONCE, p=probabilities(FIRST, **params)),
    "bad": lambda rng, params: np.full(AT_ONCE, int(FIRST.argmin())),
    "likeliest": lambda rng, params: np.full(AT_ONCE, int(FIRST.argmax())),
    "any": lambda rng, params: rng.integers(0, VOCAB, AT_ONCE),
}


def likelier_than_guessed(chosen, tokens, samples, num_drafts):
    """A bias: a draft counts as right if the model finds it likelier than who drew it, one of VOCAB, whatever the row chose."""
    return jnp.where(jax.nn.softmax(jnp.asarray(FIRST))[tokens[:, 1]] > 1 / VOCAB, 2, 1)


def always(chosen, tokens, samples, num_drafts):
    """A bias: every draft counts as right."""
    return 1 + num_drafts


@partial(jax.jit, static_argnames="accept")
def two_tokens(batch, drafts, accept):
    """Tokens int32[R,2] that rows choose."""
    rows, vocabulary, state = drafts.shape[0], Vocabulary(VOCAB), empty_state(0, VOCAB)
    tokens = jnp.stack([jnp.zeros_like(drafts), drafts], axis=1)
    wide = each_draft(batch, tokens)
    first, second = jnp.asarray(FIRST), jnp.asarray(SECOND)
    logits = jnp.stack([jnp.broadcast_to(first, (rows, VOCAB)), second[drafts]], axis=1).reshape(2 * rows, VOCAB)
    chosen = sample(logits, wide, state, vocabulary, asking(STANDARD)).reshape(rows, 2)
    everybody = jnp.ones(rows, jnp.bool_)
    counts = accept(chosen, tokens, everybody, everybody.astype(jnp.int32))
    chosen = chosen.at[:, 0].set(jnp.where(counts > 1, drafts, chosen[:, 0]))  # a draft that counts is what is told
    moved = replace(batch, position=batch.position + 1)
    next_step = sample(second[chosen[:, 0]], moved, state, vocabulary, asking(STANDARD))
    return jnp.stack([chosen[:, 0], jnp.where(counts > 1, chosen[:, 1], next_step)], axis=1), counts


def drawn(params, make, accept=num_chosen):
    """How often each pair of tokens came, and how many drafts were right."""
    counts, num_right = np.zeros((VOCAB, VOCAB)), 0
    rng = np.random.default_rng(3)
    for part in range(DRAWS // AT_ONCE):
        seeds = np.arange(AT_ONCE, dtype=np.uint32) + np.uint32(part * AT_ONCE)
        batch = make_batch(AT_ONCE, slots=0, seeds=seeds, positions=7, bias=False, **params)
        tokens, chosen = two_tokens(batch, jnp.asarray(make(rng, params), jnp.int32), accept)
        np.add.at(counts, tuple(np.asarray(tokens).T), 1)
        num_right += int((np.asarray(chosen) > 1).sum())
    return counts, num_right


def chi_square(counts, params):
    wanted = DRAWS * probabilities(FIRST, **params)[:, None] * np.stack([probabilities(row, **params) for row in SECOND])
    assert not counts[wanted == 0].any(), "a token came that is cut off"
    possible = wanted > 0
    return float((((counts - wanted) ** 2)[possible] / wanted[possible]).sum())


# Every draft without a rule, and every rule with one kind of drafts.
CORE = {*((0, kind) for kind in DRAFTS), (1, "any"), (2, "good"), (3, "likeliest")}


@pytest.mark.parametrize(("rule", "kind"), tiered(product(range(len(RULES)), DRAFTS), CORE))
def test_tokens_are_distributed_as_the_model_says(rule, kind):
    params = RULES[rule]
    counts, num_right = drawn(params, DRAFTS[kind])
    assert chi_square(counts, params) < UNLIKELY
    if kind in ("good", "likeliest"):
        assert num_right > DRAWS / 10


@pytest.mark.parametrize("bias", [likelier_than_guessed, always])
def test_a_biased_rule_would_be_seen(bias):
    counts, _ = drawn({}, DRAFTS["any"], bias)
    assert chi_square(counts, {}) > 10 * UNLIKELY


def test_tokens_do_not_depend_on_drafts_at_all():
    """More than the distribution: each seed's very tokens are the same, whatever is guessed, and whoever is beside it."""
    batch = make_batch(AT_ONCE, slots=0, seeds=np.arange(AT_ONCE), positions=7, bias=False)
    told = [
        two_tokens(batch, jnp.asarray(make(np.random.default_rng(0), {}), jnp.int32), num_chosen)[0] for make in DRAFTS.values()
    ]
    for tokens in told[1:]:
        np.testing.assert_array_equal(tokens, told[0])
