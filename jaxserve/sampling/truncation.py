"""Which tokens top-k, top-p and min-p keep, without sorting the vocabulary.

Tokens are ordered by logit, ties by id. Each rule keeps a prefix of that order, so it is enough to find the last token
kept: bisection over the bits of the float, then, only where ties straddle the cut, over ids. Every probe is one pass, and
between devices one sum of a number a row. Both rules and both searches are turns of loops, so that a program that holds
this has one probe to compile.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxserve.sampling.vocabulary import Vocabulary

INFINITY_BITS = 0x7F800000
TINY = float(np.finfo(np.float32).tiny)
TOP_K, TOP_P = 0, 1  # turns


def kept_tokens(deficit: jax.Array, top_k: jax.Array, top_p: jax.Array, min_p: jax.Array, vocabulary: Vocabulary) -> jax.Array:
    """Return which tokens [R, C] stay, the likeliest always among them.

    Args:
        deficit: f32 [R, C], how far each logit is below the row's largest, after temperature: at least +0.
        top_k: int32 [R]; 0 keeps all.
        top_p: f32 [R], of what top-k kept; 1 keeps all.
        min_p: f32 [R], relative to the likeliest token; 0 keeps all.
        vocabulary: which tokens the columns are.
    """
    limited_k, limited_p = (top_k > 0) & (top_k < vocabulary.size), top_p < 1.0

    def narrow(rule: jax.Array, kept: jax.Array) -> jax.Array:
        by_mass = rule == TOP_P
        weight = jnp.where(kept, jnp.where(by_mass, jnp.exp(-deficit), 1.0), 0.0)
        mass = top_p * vocabulary.total(jnp.sum(weight, axis=1))
        prefix = _prefix(deficit, weight, jnp.where(by_mass, mass, top_k.astype(jnp.float32)), vocabulary)
        limited = jnp.where(by_mass, limited_p, limited_k)
        return kept & (prefix | ~limited[:, None])

    first = jnp.where(jnp.any(limited_k), TOP_K, TOP_P)
    end = jnp.where(jnp.any(limited_p), TOP_P + 1, TOP_K + 1)  # not above `first` if there is no limit at all
    kept: jax.Array = lax.fori_loop(first, end, narrow, jnp.ones(deficit.shape, jnp.bool_))
    return kept & (deficit <= -jnp.log(min_p)[:, None])


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
