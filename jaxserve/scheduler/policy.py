"""What a scheduler decides by, where there is a choice: each is a function, and those of `DEFAULT_POLICY` are the product's own.

Classes, quotas and budgets hold under any of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from jaxserve.scheduler.request import Sequence


@dataclass(frozen=True, slots=True)
class Victim:
    """A running sequence that could give its pages back.

    Attributes:
        pages: that would become free.
        over_quota: whether its tenant has more pages than its share.
    """

    sequence: Sequence
    pages: int
    over_quota: bool


def always(num_running: int, num_waiting: int, num_started: int) -> bool:
    """Continuous batching: whoever finds room starts."""
    return True


def least_work(first: Sequence, work: float) -> float:
    """Fair queueing: the tenant that has had the least token-work for its weight."""
    return work


def cheapest(victim: Victim) -> tuple[bool, int, float, int]:
    """Tenants beyond their quota, then the lowest class, then the fewest computed tokens for each page, then the youngest."""
    rank, order = victim.sequence.precedence
    cost = victim.sequence.num_computed / victim.pages if victim.pages else math.inf
    return not victim.over_quota, -rank, cost, -order


def faster(swap: float, recompute: float) -> bool:
    """Whichever takes fewer seconds."""
    return swap < recompute


@dataclass(frozen=True, slots=True)
class Policy:
    """The choices of a scheduler.

    Attributes:
        may_start: whether one more may start, of (sequences that run, that wait, that have started since the beginning).
        order: where a tenant stands in its class, the smallest first, of (its first sequence that waits, its token-work).
        victim: which of several is preempted: the one with the smallest key.
        swap: whether a victim's pages are swapped, of (seconds to swap them out and in, seconds to compute them again).
    """

    may_start: Callable[[int, int, int], bool] = always
    order: Callable[[Sequence, float], float] = least_work
    victim: Callable[[Victim], tuple[float, ...]] = cheapest
    swap: Callable[[float, float], bool] = faster


DEFAULT_POLICY = Policy()
