"""Eight devices with an eighth of the vocabulary each choose the tokens that one device chooses."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxserve.sampling.logprobs import token_logprobs
from jaxserve.sampling.noise import gumbel_noise
from jaxserve.sampling.options import STANDARD
from jaxserve.sampling.sampler import NO_TOKEN, sample
from jaxserve.sampling.state import SamplerState, empty_state, record_tokens
from jaxserve.sampling.variants import asking, variants_of
from jaxserve.sampling.vocabulary import Vocabulary
from jaxserve.types import MASK_BITS
from sharding import TENSOR, make_mesh

from .builders import make_batch, mask_words

ROWS, VOCAB, DEVICES = 6, 497, 8
COLUMNS = -(-VOCAB // DEVICES)
BY_VOCAB, EVERYWHERE = PartitionSpec(None, TENSOR), PartitionSpec()
MASKS = mask_words(np.random.default_rng(2).random((ROWS, DEVICES * COLUMNS + MASK_BITS)) < 0.1)
WHOLE, DIVIDED = Vocabulary(VOCAB), Vocabulary(VOCAB, TENSOR)


def shared(function, in_specs, out_specs):
    """The function on eight devices, jitted."""
    return jax.jit(jax.shard_map(function, mesh=make_mesh(DEVICES), in_specs=in_specs, out_specs=out_specs, check_vma=False))


def choose(vocabulary, variant, logits, batch, state, masks):
    tokens = sample(logits, batch, state, vocabulary, variant, masks=masks)
    return tokens, record_tokens(state, batch.slot, jnp.maximum(tokens, 0), vocabulary)


STRAIGHT = variants_of(STANDARD, straight=True)[-1]  # as several devices have it
one = jax.jit(lambda *arguments: choose(WHOLE, asking(STANDARD), *arguments))
eight = shared(
    lambda *arguments: choose(DIVIDED, STRAIGHT, *arguments), (BY_VOCAB, EVERYWHERE, BY_VOCAB, EVERYWHERE), (EVERYWHERE, BY_VOCAB)
)


def padded(values, fill=0):
    spare = DEVICES * COLUMNS - values.shape[1]
    return jnp.asarray(np.pad(values, ((0, 0), (0, spare)), constant_values=fill))


def random_logits(seed=0):
    return (np.random.default_rng(seed).standard_normal((ROWS, VOCAB)) * 2).astype(np.float32)


def random_state(bias=0.5):
    rng = np.random.default_rng(1)
    counts = rng.integers(0, 3, (ROWS + 1, VOCAB)).astype(np.int32)
    added = np.where(rng.random((ROWS + 1, VOCAB)) < 0.1, -np.inf, bias * rng.standard_normal((ROWS + 1, VOCAB)))
    return SamplerState(*map(jnp.asarray, (counts, rng.random((ROWS + 1, VOCAB)) < 0.3, added.astype(np.float32))))


def both(logits, batch, state):
    """Tokens of one device and of eight, having checked that the states after them are the same."""
    tokens, after = one(jnp.asarray(logits), batch, jax.tree.map(jnp.asarray, state), MASKS)
    others, others_after = eight(padded(logits, -np.inf), batch, jax.tree.map(padded, state), MASKS)
    for table, other in zip(jax.tree.leaves(after), jax.tree.leaves(others_after), strict=True):
        np.testing.assert_array_equal(np.asarray(other)[:, :VOCAB], table)
        assert not np.asarray(other)[:, VOCAB:].any()
    return np.asarray(tokens).tolist(), np.asarray(others).tolist()


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0, "bias": False},
        {"temperature": 0.0},
        {"temperature": 0.0, "masked": 1},
        {"masked": [0, 1, 0, 1, 1, 0], "top_k": 7},
        {},
        {"top_k": 7},
        {"top_k": 60, "temperature": 5.0},
        {"top_k": VOCAB, "top_p": 0.8},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"top_k": 50, "top_p": 0.9, "min_p": 0.01, "temperature": 1.5},
        {"repetition": 1.5, "presence": 0.5, "frequency": 0.3},
        {"temperature": [0.0, 1.0] * 3, "top_p": [1.0, 0.5] * 3},
        {"suppress": [[0, VOCAB - 1, -1], [5, 6, 7], [-1, -1, -1]] * 2, "temperature": 0.0},
    ],
    ids=str,
)
def test_the_same_tokens(params):
    seen: set[int] = set()
    for position in range(4):
        batch = make_batch(ROWS, seeds=np.arange(ROWS), positions=position, **params)
        tokens, others = both(random_logits(position), batch, random_state())
        assert others == tokens
        assert min(tokens) >= 0
        seen.update(token // COLUMNS for token in tokens)
    assert len(seen) >= 4, "tokens from many devices"


@pytest.mark.parametrize("params", [{"top_k": 3}, {"top_k": 5}, {"top_p": 0.3}, {"temperature": 0.0}], ids=str)
def test_ties_between_devices_go_to_the_lowest_token(params):
    logits = np.round(random_logits())
    logits[0] = 0.0
    logits[1, [40, 80, 120, 300]] = 9.0
    batch = make_batch(ROWS, seeds=np.arange(ROWS), bias=False, **params)
    tokens, others = both(logits, batch, random_state())
    assert others == tokens
    if "temperature" in params:
        assert tokens[:2] == [0, 40]
    if params == {"top_k": 3}:
        assert tokens[1] in (40, 80, 120)


def test_ties_with_one_token_a_device_are_cut():
    logits = random_logits()
    logits[:, [40, 80, 120, 300]] = 20.0
    seen = set()
    for position in range(4):
        tokens, others = both(
            logits, make_batch(ROWS, seeds=np.arange(ROWS), positions=position, top_k=3, bias=False), random_state()
        )
        assert others == tokens
        seen.update(tokens)
    assert seen == {40, 80, 120}


def test_every_token_forbidden_or_suppressed():
    logits = random_logits()
    logits[0] = -np.inf
    logits[1, : VOCAB - 1] = -np.inf
    for temperature in (0.0, 1.0):
        batch = make_batch(ROWS, temperature=temperature, bias=False)
        tokens, others = both(logits, batch, random_state())
        assert others == tokens
        assert others[:2] == [0, VOCAB - 1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 150, VOCAB - 1])
def test_a_bad_logit_on_any_device_spoils_its_row_alone(temperature, bad, place):
    logits = random_logits()
    clean, _ = both(logits, make_batch(ROWS, temperature=temperature, bias=False), random_state())
    logits[2, place] = bad
    tokens, others = both(logits, make_batch(ROWS, temperature=temperature, bias=False), random_state())
    assert tokens == others == [*clean[:2], NO_TOKEN, *clean[3:]]


def test_one_nan_among_many_tokens_is_noticed():
    """Wide enough on each device for XLA's vectorised maximum, which does not see NaN."""
    logits = np.random.default_rng(0).standard_normal((2, 32_000)).astype(np.float32)
    logits[0, 12_345] = np.nan
    vocabulary = Vocabulary(32_000, TENSOR)
    run = shared(
        lambda logits, batch, state: sample(logits, batch, state, vocabulary, STRAIGHT),
        (BY_VOCAB, EVERYWHERE, BY_VOCAB),
        EVERYWHERE,
    )
    got = run(jnp.asarray(logits), make_batch(2, temperature=0.0, bias=False), empty_state(2, 32_000))
    assert np.asarray(got).tolist() == [NO_TOKEN, logits[1].argmax()]


def test_noise_is_that_of_jax_random():
    key = np.asarray([[0, 7], [3, 2**32 - 1]], np.uint32)
    position = np.asarray([5, 2**31 - 1], np.int32)
    expected = [
        jax.random.gumbel(jax.random.fold_in(jax.random.wrap_key_data(k, impl="threefry2x32"), p), (VOCAB,), jnp.float32)
        for k, p in zip(jnp.asarray(key), position, strict=True)
    ]
    whole = jax.jit(lambda key, position: gumbel_noise(key, position, VOCAB, WHOLE))(key, position)
    np.testing.assert_allclose(whole, expected, rtol=1e-6, atol=1e-6)
    parts = shared(lambda key, position: gumbel_noise(key, position, COLUMNS, DIVIDED), (EVERYWHERE, EVERYWHERE), BY_VOCAB)(
        key, position
    )
    np.testing.assert_array_equal(np.asarray(parts)[:, :VOCAB], whole)


@pytest.mark.parametrize("count", [1, 20, VOCAB])
def test_log_probabilities(count):
    logits = random_logits()
    logits[2] = np.round(logits[2]) + 0.0
    logits[3, 5:] = -np.inf
    tokens = np.asarray([0, 37, 38, 4, VOCAB - 1, 200], np.int32)
    whole = jax.jit(lambda logits, tokens: token_logprobs(logits, tokens, count, WHOLE))(jnp.asarray(logits), tokens)
    divided = shared(lambda logits, tokens: token_logprobs(logits, tokens, count, DIVIDED), (BY_VOCAB, EVERYWHERE), EVERYWHERE)
    chosen, rank, ids, top = divided(padded(logits, -np.inf), tokens)
    np.testing.assert_allclose(chosen, whole[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(rank, whole[1])
    np.testing.assert_array_equal(ids, whole[2])
    np.testing.assert_allclose(top, whole[3], rtol=1e-6, atol=1e-6)


def test_devices_exchange_a_few_numbers_a_row():
    arguments = (padded(random_logits()), make_batch(ROWS), jax.tree.map(padded, random_state()), MASKS)
    text = eight.lower(*arguments).compile().as_text()
    found = re.findall(r"= \(?(\w+\[[\d,]*\]).*? (all-reduce|all-gather|all-to-all|collective-permute)(?:-start)?\(", text)
    assert found
    for shape, _ in found:
        dimensions = [int(size) for size in shape.split("[")[1][:-1].split(",") if size]
        assert np.prod(dimensions) <= 32 * ROWS, shape
