"""Which of the sampler's work a program does. The host knows what a step's rows need, and takes the smallest that does it.

On GPUs a program is a straight line: a conditional would copy logits that it does not change, a loop with exchanges between
devices in it cannot be waited for, and each splits or slows the graph that a step is launched as. On one CPU conditionals and
loops cost nothing, and one program for every mix is one to compile: there it asks at run time what rows need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from jax import lax

from jaxserve.sampling.batch import SamplingBatch
from jaxserve.sampling.options import LOGPROBS, PROCESSED, RANDOM, RULES, TRUNCATION, Need, RowOptions

GENERAL = "general"

Arrays = TypeVar("Arrays")  # an array, or a tuple of them


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the programs that choose tokens.

    Attributes:
        needs: work that it can do.
        asks: whether it skips at run time what no row needs; otherwise it does all of it for every row.
    """

    name: str
    needs: frozenset[Need]
    asks: bool = False

    def when(
        self,
        needs: Iterable[Need],
        batch: SamplingBatch,
        work: Callable[[], Arrays],
        otherwise: Callable[[], Arrays],
    ) -> Arrays:
        """What `work` makes if any row may need one of these, else the other. Of rows that need none both make the same."""
        possible = [need for need in needs if need in self.needs]
        if not possible:
            return otherwise()
        if not self.asks:
            return work()
        asked = batch.any(possible[0])
        for need in possible[1:]:
            asked |= batch.any(need)
        made: Arrays = lax.cond(asked, work, otherwise)
        return made


def variants_of(options: RowOptions, *, straight: bool) -> tuple[Variant, ...]:
    """All variants for rows with these options, cheapest first; the last, GENERAL, does everything."""
    every = frozenset(options.needs)
    if not straight:
        return (asking(options),)
    return (
        Variant("greedy", frozenset()),
        Variant("random", frozenset({RANDOM})),
        Variant("logprobs", frozenset({RANDOM, LOGPROBS})),
        Variant("processed", frozenset({RANDOM, LOGPROBS, PROCESSED})),
        Variant("truncated", frozenset({RANDOM, TRUNCATION})),
        Variant("penalized", every - {RULES, LOGPROBS, PROCESSED}),
        Variant(GENERAL, every),
    )


def asking(options: RowOptions) -> Variant:
    """The one that asks, of all that there is."""
    return Variant(GENERAL, frozenset(options.needs), asks=True)
