"""Which tokens top-k, top-p and the rules after them keep, without sorting the vocabulary.

Tokens are ordered by logit, ties by id. Top-k and top-p keep a prefix of that order, so it is enough to find the last token
kept: bisection over the bits of the float, then, only where ties straddle the cut, over ids. Every probe is one pass, and
between devices one sum of a number a row. Both rules and both searches are turns of loops, so that a program that holds
this has one probe to compile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxserve.sampling.batch import SamplingBatch
from jaxserve.sampling.options import MIN_P, TOP_K, TOP_N_SIGMA, TOP_P, TYPICAL_P, RowOption
from jaxserve.sampling.vocabulary import Vocabulary

INFINITY_BITS = 0x7F800000
TINY = float(np.finfo(np.float32).tiny)
BY_COUNT, BY_MASS = 0, 1  # turns


class Rule(NamedTuple):
    """What an option says of which tokens are kept.

    Attributes:
        option: it has one number.
        keeps: (deficit f32 [R, C], kept bool [R, C], the option's values [R], vocabulary) -> bool [R, C], which of those that are
            kept so far stay. What it returns of rows whose value is neutral does not matter.
        cheap: whether it costs less than to ask whether any row needs it; then a neutral value must keep everything.
    """

    option: RowOption
    keeps: Callable[[jax.Array, jax.Array, jax.Array, Vocabulary], jax.Array]
    cheap: bool = False

    def narrow(self, deficit: jax.Array, kept: jax.Array, value: jax.Array, vocabulary: Vocabulary) -> jax.Array:
        """Which tokens are kept after it."""
        if self.cheap:
            return kept & self.keeps(deficit, kept, value, vocabulary)
        asks = value != self.option.dtype(self.option.neutral)
        narrowed: jax.Array = lax.cond(
            jnp.any(asks), lambda: kept & (self.keeps(deficit, kept, value, vocabulary) | ~asks[:, None]), lambda: kept
        )
        return narrowed


def kept_tokens(deficit: jax.Array, batch: SamplingBatch, vocabulary: Vocabulary, rules: tuple[Rule, ...] = ()) -> jax.Array:
    """Return which tokens [R, C] stay: those of top-k, of these those of top-p, of these those of every rule after the other.

    Args:
        deficit: f32 [R, C], how far each logit is below the row's largest, after temperature: at least +0.
        batch: what each row asks for.
        vocabulary: which tokens the columns are.
        rules: besides RULES.
    """
    kept = _top_k_and_top_p(deficit, batch[TOP_K], batch[TOP_P], vocabulary)
    for rule in (*RULES, *rules):
        kept = rule.narrow(deficit, kept, batch[rule.option], vocabulary)
    return kept


def _min_p(deficit: jax.Array, kept: jax.Array, share: jax.Array, vocabulary: Vocabulary) -> jax.Array:
    return deficit <= -jnp.log(share)[:, None]


def _top_n_sigma(deficit: jax.Array, kept: jax.Array, count: jax.Array, vocabulary: Vocabulary) -> jax.Array:
    """Of all tokens that may come, whatever is kept: Tang et al., Top-n-sigma, 2024, https://arxiv.org/abs/2411.07641."""
    possible = jnp.isfinite(deficit)

    def mean(values: jax.Array) -> jax.Array:
        total = vocabulary.total(jnp.sum(jnp.where(possible, values, 0.0), axis=1))
        return (total / jnp.maximum(vocabulary.total(jnp.sum(possible.astype(jnp.float32), axis=1)), 1.0))[:, None]

    deviation = jnp.sqrt(mean(jnp.square(deficit - mean(deficit))))
    return deficit <= count[:, None] * deviation


def _typical_p(deficit: jax.Array, kept: jax.Array, share: jax.Array, vocabulary: Vocabulary) -> jax.Array:
    """Of what is kept: Meister et al., Locally Typical Sampling, 2022, https://arxiv.org/abs/2202.00666."""
    weight = jnp.where(kept, jnp.exp(-deficit), 0.0)
    total = vocabulary.total(jnp.sum(weight, axis=1))
    information = deficit + jnp.log(total)[:, None]  # -log p of those that are kept
    probability = weight / total[:, None]
    entropy = vocabulary.total(jnp.sum(jnp.where(weight > 0.0, probability * information, 0.0), axis=1))
    distance = jnp.where(kept, jnp.abs(information - entropy[:, None]), jnp.inf)
    return _prefix(distance, probability, share, vocabulary)


RULES = (Rule(MIN_P, _min_p, cheap=True), Rule(TOP_N_SIGMA, _top_n_sigma), Rule(TYPICAL_P, _typical_p))


def _top_k_and_top_p(deficit: jax.Array, top_k: jax.Array, top_p: jax.Array, vocabulary: Vocabulary) -> jax.Array:
    """int32 [R], 0 keeps all; f32 [R], 1 keeps all of what top-k kept. The likeliest is always among them."""
    limited_k, limited_p = (top_k > 0) & (top_k < vocabulary.size), top_p < 1.0

    def narrow(rule: jax.Array, kept: jax.Array) -> jax.Array:
        by_mass = rule == BY_MASS
        weight = jnp.where(kept, jnp.where(by_mass, jnp.exp(-deficit), 1.0), 0.0)
        mass = top_p * vocabulary.total(jnp.sum(weight, axis=1))
        prefix = _prefix(deficit, weight, jnp.where(by_mass, mass, top_k.astype(jnp.float32)), vocabulary)
        limited = jnp.where(by_mass, limited_p, limited_k)
        return kept & (prefix | ~limited[:, None])

    first = jnp.where(jnp.any(limited_k), BY_COUNT, BY_MASS)
    end = jnp.where(jnp.any(limited_p), BY_MASS + 1, BY_COUNT + 1)  # not above `first` if there is no limit at all
    kept: jax.Array = lax.fori_loop(first, end, narrow, jnp.ones(deficit.shape, jnp.bool_))
    return kept


class _Search(NamedTuple):
    """The last token kept, as far as it is known.

    Attributes:
        bits: int32 [R], of its deficit.
        token: int32 [R], itself; those of its deficit beyond it are cut.
        by_id: bool, whether the deficit is found and the token is sought.
        more: bool, whether there is anything to seek.
    """

    bits: jax.Array
    token: jax.Array
    by_id: jax.Array
    more: jax.Array


def _prefix(deficit: jax.Array, weight: jax.Array, target: jax.Array, vocabulary: Vocabulary) -> jax.Array:
    """Mark the shortest prefix of the order whose weight [R, C] reaches target [R]."""
    target = jnp.maximum(target, TINY)  # never an empty prefix
    rows, last_token = target.shape, vocabulary.size - 1
    token = vocabulary.tokens(deficit.shape)

    def chosen(bits: jax.Array, last: jax.Array) -> jax.Array:
        bound = lax.bitcast_convert_type(bits, jnp.float32)[:, None]
        return (deficit < bound) | ((deficit == bound) & (token <= last[:, None]))

    def seek(found: _Search) -> _Search:
        def halve(_: jax.Array, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            low, high = bounds
            middle = low + (high - low) // 2
            probe = chosen(jnp.where(found.by_id, found.bits, middle), jnp.where(found.by_id, middle, last_token))
            enough = vocabulary.total(jnp.sum(jnp.where(probe, weight, 0.0), axis=1)) >= target
            return jnp.where(enough, low, jnp.minimum(middle + 1, high)), jnp.where(enough, middle, high)

        # Floats that are not negative are ordered as their bits are.
        end = jnp.where(found.by_id, last_token, INFINITY_BITS)
        halvings = jnp.where(found.by_id, last_token.bit_length(), INFINITY_BITS.bit_length())
        start = (jnp.zeros(rows, jnp.int32), jnp.full(rows, end, jnp.int32))
        last = lax.fori_loop(0, halvings, halve, start)[1]
        bits, last = jnp.where(found.by_id, found.bits, last), jnp.where(found.by_id, last, last_token)
        bound = lax.bitcast_convert_type(bits, jnp.float32)[:, None]
        tied = vocabulary.total(jnp.sum((deficit == bound).astype(jnp.int32), axis=1)) > 1
        return _Search(bits, last, jnp.bool_(True), ~found.by_id & jnp.any(tied))

    everything = jnp.full(rows, INFINITY_BITS, jnp.int32), jnp.full(rows, last_token, jnp.int32)
    found = lax.while_loop(lambda found: found.more, seek, _Search(*everything, jnp.bool_(False), jnp.bool_(True)))
    return chosen(found.bits, found.token)
