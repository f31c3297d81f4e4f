"""Which tokens top-k, top-p and the rules after them keep, without sorting the vocabulary.

Tokens are ordered by logit, ties by id. Top-k and top-p keep a prefix of that order (`sampling.prefix`). Where a program
asks what rows need, both are turns of one loop, so that it has one search to compile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxserve.sampling.batch import SamplingBatch
from jaxserve.sampling.options import MIN_P, TOP_K, TOP_N_SIGMA, TOP_P, TYPICAL_P, RowOption
from jaxserve.sampling.prefix import Order
from jaxserve.sampling.variants import Variant
from jaxserve.sampling.vocabulary import Vocabulary

BY_COUNT, BY_MASS = 0, 1  # turns


class Scores(NamedTuple):
    """What a rule sees of each row's tokens.

    Attributes:
        deficit: f32 [R, C], how far each logit is below the row's largest, after temperature.
        kept: bool [R, C], so far.
        vocabulary: which tokens the columns are.
        straight: see `Order`.
    """

    deficit: jax.Array
    kept: jax.Array
    vocabulary: Vocabulary
    straight: bool


class Rule(NamedTuple):
    """What an option says of which tokens are kept.

    Attributes:
        option: it has one number.
        keeps: (scores, the option's values [R]) -> bool [R, C], which of those that are kept so far stay. What it returns of rows
            whose value is neutral does not matter.
        cheap: whether it costs less than to ask whether any row needs it; then a neutral value must keep everything.
    """

    option: RowOption
    keeps: Callable[[Scores, jax.Array], jax.Array]
    cheap: bool = False

    def narrow(self, scores: Scores, value: jax.Array, variant: Variant) -> jax.Array:
        """Which tokens are kept after it."""
        if self.cheap:
            return scores.kept & self.keeps(scores, value)
        asks = value != self.option.dtype(self.option.neutral)

        def narrowed() -> jax.Array:
            return scores.kept & (self.keeps(scores, value) | ~asks[:, None])

        if self.option.need not in variant.needs:
            return scores.kept
        if not variant.asks:
            return narrowed()
        kept: jax.Array = lax.cond(jnp.any(asks), narrowed, lambda: scores.kept)
        return kept


def kept_tokens(
    deficit: jax.Array, batch: SamplingBatch, vocabulary: Vocabulary, variant: Variant, rules: tuple[Rule, ...] = ()
) -> jax.Array:
    """Return which tokens [R, C] stay: those of top-k, of these those of top-p, of these those of every rule after the other.

    Args:
        deficit: f32 [R, C], how far each logit is below the row's largest, after temperature: at least +0.
        batch: what each row asks for.
        vocabulary: which tokens the columns are.
        variant: rules that it does not need are passed over.
        rules: besides AFTER_TOP_P.
    """
    straight = not variant.asks
    kept = _top_k_and_top_p(deficit, batch[TOP_K], batch[TOP_P], vocabulary, straight=straight)
    for rule in (*AFTER_TOP_P, *rules):
        kept = rule.narrow(Scores(deficit, kept, vocabulary, straight), batch[rule.option], variant)
    return kept


def _min_p(scores: Scores, share: jax.Array) -> jax.Array:
    return scores.deficit <= -jnp.log(share)[:, None]


def _top_n_sigma(scores: Scores, count: jax.Array) -> jax.Array:
    """Of all tokens that may come, whatever is kept: Tang et al., Top-n-sigma, 2024, https://arxiv.org/abs/2411.07641."""
    deficit, vocabulary = scores.deficit, scores.vocabulary
    possible = jnp.isfinite(deficit)

    def mean(values: jax.Array) -> jax.Array:
        total = vocabulary.total(jnp.sum(jnp.where(possible, values, 0.0), axis=1))
        return (total / jnp.maximum(vocabulary.total(jnp.sum(possible.astype(jnp.float32), axis=1)), 1.0))[:, None]

    deviation = jnp.sqrt(mean(jnp.square(deficit - mean(deficit))))
    return deficit <= count[:, None] * deviation


def _typical_p(scores: Scores, share: jax.Array) -> jax.Array:
    """Of what is kept: Meister et al., Locally Typical Sampling, 2022, https://arxiv.org/abs/2202.00666."""
    deficit, kept, vocabulary, straight = scores
    weight = jnp.where(kept, jnp.exp(-deficit), 0.0)
    total = vocabulary.total(jnp.sum(weight, axis=1))
    information = deficit + jnp.log(total)[:, None]  # -log p of those that are kept
    probability = weight / total[:, None]
    entropy = vocabulary.total(jnp.sum(jnp.where(weight > 0.0, probability * information, 0.0), axis=1))
    distance = jnp.where(kept, jnp.abs(information - entropy[:, None]), jnp.inf)
    return Order(distance, probability, vocabulary, straight).prefix(lambda total: share)


AFTER_TOP_P = (Rule(MIN_P, _min_p, cheap=True), Rule(TOP_N_SIGMA, _top_n_sigma), Rule(TYPICAL_P, _typical_p))


def _top_k_and_top_p(
    deficit: jax.Array, top_k: jax.Array, top_p: jax.Array, vocabulary: Vocabulary, *, straight: bool
) -> jax.Array:
    """int32 [R], 0 keeps all; f32 [R], 1 keeps all of what top-k kept. The likeliest is always among them."""
    limited_k, limited_p = (top_k > 0) & (top_k < vocabulary.size), top_p < 1.0

    def narrow(rule: jax.Array | int, kept: jax.Array) -> jax.Array:
        by_mass = jnp.asarray(rule == BY_MASS)
        weight = jnp.where(kept, jnp.where(by_mass, jnp.exp(-deficit), 1.0), 0.0)
        order = Order(deficit, weight, vocabulary, straight)
        prefix = order.prefix(lambda total: jnp.where(by_mass, top_p * total, top_k.astype(jnp.float32)))
        limited = jnp.where(by_mass, limited_p, limited_k)
        return kept & (prefix | ~limited[:, None])

    everything = jnp.ones(deficit.shape, jnp.bool_)
    if straight:
        return narrow(BY_MASS, narrow(BY_COUNT, everything))
    first = jnp.where(jnp.any(limited_k), BY_COUNT, BY_MASS)
    end = jnp.where(jnp.any(limited_p), BY_MASS + 1, BY_COUNT + 1)  # not above `first` if there is no limit at all
    kept: jax.Array = lax.fori_loop(first, end, narrow, everything)
    return kept
