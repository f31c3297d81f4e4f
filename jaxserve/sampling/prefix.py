"""The shortest prefix of an order of the vocabulary that reaches a weight, without sorting.

Tokens are ordered by a number that is not negative, ties by id. The number of the last one is found digit by digit in the bits of
the float, which are ordered as floats are: each pass over the vocabulary weighs the prefixes that end with each value of a
digit. Then ties are cut: the weights of those that have the number are summed by blocks of columns, and the block that reaches is
looked into. Between devices a pass is one exchange of a few numbers a row.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxserve.sampling.vocabulary import Vocabulary

INFINITY_BITS = 0x7F800000
TINY = float(np.finfo(np.float32).tiny)
BITS = 31  # of a float that is not negative
DIGITS = (3, 4, 4, 4, 4, 4, 4, 4)  # bits found in each pass of a straight line: more would take fewer passes, and long to compile

assert sum(DIGITS) == BITS


class _Found(NamedTuple):
    """What is known of the last token's number.

    Attributes:
        low: int32 [R], the least that its bits can be.
        below: f32 [R], the weight of all tokens with lower bits than that.
    """

    low: jax.Array
    below: jax.Array


@dataclass(frozen=True, slots=True)
class Order:
    """An order of the vocabulary, and what its tokens weigh.

    Attributes:
        number: f32 [R, C], by which tokens are ordered: not negative.
        weight: f32 [R, C], not negative.
        vocabulary: which tokens the columns are.
        straight: weigh many prefixes in each of few passes, one after another; otherwise one prefix a pass, in a loop.
    """

    number: jax.Array
    weight: jax.Array
    vocabulary: Vocabulary
    straight: bool

    def prefix(self, target: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """Mark the prefix: bool [R, C]; never an empty one.

        Args:
            target: the weight that is to be reached, f32 [R], of that of all tokens, f32 [R].
        """
        rows = self.number.shape[0]
        start = _Found(jnp.zeros(rows, jnp.int32), jnp.zeros(rows, jnp.float32))
        everything = jnp.full(rows, INFINITY_BITS, jnp.int32)
        if self.straight:
            ends = _ends(start, DIGITS[0], BITS - DIGITS[0])
            weights = self._weigh([*ends, everything])
            wanted = jnp.maximum(target(weights[-1]), TINY)
            found = _narrowed(start, weights[:-1], wanted, BITS - DIGITS[0])
            for place, digit in enumerate(DIGITS[1:], 1):
                shift = BITS - sum(DIGITS[: place + 1])
                found = _narrowed(found, self._weigh(_ends(found, digit, shift)), wanted, shift)
        else:
            wanted = jnp.maximum(target(self._weigh([everything])[0]), TINY)

            def narrow(place: jax.Array, found: _Found) -> _Found:
                shift = BITS - 1 - place
                return _narrowed(found, self._weigh(_ends(found, 1, shift)), wanted, shift)

            found = lax.fori_loop(0, BITS, narrow, start)
        return self._cut(_as_floats(found.low), found.below, wanted)

    def _weigh(self, ends: Sequence[jax.Array]) -> jax.Array:
        """The weights f32 [N,R] of all tokens up to each of N numbers, whose bits are int32 [R]: one pass, one exchange."""
        parts = [jnp.where(self.number <= _as_floats(bits)[:, None], self.weight, 0.0) for bits in ends]
        if len(parts) == 1:
            return self.vocabulary.total(jnp.sum(parts[0], axis=1)[None])
        zeros = (jnp.float32(0.0),) * len(parts)
        # One reduction of them all: apart, each might become a kernel that reads the logits again.
        sums = lax.reduce(tuple(parts), zeros, lambda one, other: tuple(map(operator.add, one, other)), (1,))
        return self.vocabulary.total(jnp.stack(sums))

    def _cut(self, last: jax.Array, below: jax.Array, wanted: jax.Array) -> jax.Array:
        """Mark tokens below the number `last` [R], which weigh `below` [R], and of those that have it the first that it takes."""
        tied = self.number == last[:, None]
        rows, columns = tied.shape
        width = 1 << ((columns - 1).bit_length() + 1) // 2  # about as many columns in a block as there are blocks
        spare = -columns % width
        blocks = jnp.pad(jnp.where(tied, self.weight, 0.0), ((0, 0), (0, spare))).reshape(rows, -1, width)
        each = jnp.sum(blocks, axis=2)
        before = below + self.vocabulary.earlier(jnp.sum(each, axis=1))
        block, reached = _first_that_reaches(each, before, wanted)
        place, _ = _first_that_reaches(jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0], reached, wanted)
        end = jnp.where(before >= wanted, 0, block * width + place + 1)
        column = lax.broadcasted_iota(jnp.int32, tied.shape, 1)
        return (self.number < last[:, None]) | (tied & (column < end[:, None]))


def _ends(found: _Found, digit: int, shift: jax.Array | int) -> list[jax.Array]:
    """The last bits with each value of a digit, whose lowest bit is at `shift`; all but its largest value."""
    return [jnp.minimum(found.low + ((jnp.int32(value) << shift) - 1), INFINITY_BITS) for value in range(1, 1 << digit)]


def _narrowed(found: _Found, weights: jax.Array, wanted: jax.Array, shift: jax.Array | int) -> _Found:
    few = weights < wanted[None]
    low = found.low + (jnp.sum(few, axis=0, dtype=jnp.int32) << shift)
    below = jnp.maximum(found.below, jnp.max(jnp.where(few, weights, 0.0), axis=0))
    return _Found(jnp.minimum(low, INFINITY_BITS), below)


def _as_floats(bits: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(bits, jnp.float32)


def _first_that_reaches(weights: jax.Array, before: jax.Array, wanted: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The first of weights [R, N] at which their sum, with what was before, reaches what is wanted: the last if none does.

    Returns its place int32 [R], and the sum before it.
    """
    count = weights.shape[1]
    earlier = jnp.tri(count, k=-1, dtype=jnp.bool_)[None]
    sums = before[:, None] + jnp.sum(jnp.where(earlier, weights[:, None, :], 0.0), axis=2)
    reaches = sums + weights >= wanted[:, None]
    place = jnp.min(jnp.where(reaches, jnp.arange(count, dtype=jnp.int32)[None], count - 1), axis=1)
    return place, jnp.take_along_axis(sums, place[:, None], axis=1)[:, 0]
