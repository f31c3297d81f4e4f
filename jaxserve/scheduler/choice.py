"""One step while it is made: which rows it will have, and what is left of its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

from jaxserve.errors import JaxserveError
from jaxserve.scheduler.fairness import PrefillTokens
from jaxserve.scheduler.request import Sequence
from jaxserve.step.plan import AdapterLoad


@dataclass(slots=True)
class Runnable:
    """Running sequences of interactive classes or of batch that have something to compute, in order of precedence.

    Attributes:
        decodes: those with no token of their prompt left to compute, and one to go on from.
        prefills: those with more.
    """

    decodes: list[Sequence] = field(default_factory=list)
    prefills: list[Sequence] = field(default_factory=list)


@dataclass(slots=True)
class StepChoice:
    """A step that is being made.

    Attributes:
        tokens: its tokens, as far as they are not given out.
        interactive, batch: what could run in it.
        others: whether anything but interactive decodes could.
        chosen: rows of running sequences; a preemption may still take one out.
        rows: rows that are settled: their `num_computed` has moved ahead.
        settled: the sequences of `rows`.
        short: sequences of `rows` with so few tokens that a kernel may write and read pages at once: what they fill is found from
            the next step on.
        masked: rows of its plan that get masks, with their sequences.
        dead_ends: rows whose drafts lead to where nothing may be chosen (`constraints.Masks`).
        computed: sequences whose prompt is computed to its end by this step; their siblings may start in the next.
        prefill_tokens: of its rows that compute prompts.
        prefilling: sequences whose prompt is in the cache only after this step: their last page cannot be copied before the next.
        preempted: whether a sequence was preempted; then none is admitted.
        admitted: whether a sequence was admitted; then none is preempted.
        full: whether something that waits did not start for want of tokens, slots or pages.
        most: its tokens at most, as the time between tokens allows.
        allowed: seconds that so many may take; 0 if they are not bounded by time.
        adapter_loads: adapters that come into their slots before it.
        failed: sequences that did not start because their adapter cannot be had, and why.
        rows_held, tokens_held: whether sequences, or tokens, are left out of it only because of what steps cost.
    """

    tokens: PrefillTokens
    interactive: Runnable
    batch: Runnable
    others: bool
    chosen: dict[Sequence, int] = field(default_factory=dict)
    rows: list[tuple[Sequence, int]] = field(default_factory=list)
    settled: set[Sequence] = field(default_factory=set)
    short: list[Sequence] = field(default_factory=list)
    masked: ListOf[tuple[int, Sequence]] = ()
    dead_ends: Mapping[int, tuple[int, JaxserveError]] = field(default_factory=dict)
    computed: list[Sequence] = field(default_factory=list)
    prefill_tokens: int = 0
    prefilling: set[Sequence] = field(default_factory=set)
    preempted: bool = False
    admitted: bool = False
    full: bool = False
    most: int = 0
    allowed: float = 0.0
    rows_held: bool = False
    tokens_held: bool = False
    adapter_loads: tuple[AdapterLoad, ...] = ()
    failed: ListOf[tuple[Sequence, JaxserveError]] = ()
