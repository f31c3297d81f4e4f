"""What the engine needs of an executor, whichever way it runs plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from jaxserve.config.states import StatePlaces
from jaxserve.metrics.turn import ExecutorCounts
from jaxserve.sampling.options import STANDARD
from jaxserve.step.plan import Ints, Plan, StepResult


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Limits of an executor.

    Attributes:
        max_num_seqs: rows in a step and slots in all.
        max_num_batched_tokens: tokens in a step.
        max_model_len: tokens of a sequence.
        num_pages, page_size: the KV cache.
        swap_slots: pages that its swap space holds; 0 if it has none, and then no plan may swap.
        swap_page_seconds: seconds to move one page there, or back, where many move.
        windows: the window of each group of layers, as the KV cache knows them.
        max_drafts: that a row may have in a step.
        guesses: that a draft model makes of a row, on the device; 0 without one.
        adapter_slots: places for adapters; 0 for none.
        states: places of recurrent states; None for a model without.
        row_options: names of the options in the words of a row, in their order.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_pages: int
    page_size: int
    swap_slots: int = 0
    swap_page_seconds: float = 0.0
    windows: tuple[int | None, ...] = (None,)
    max_drafts: int = 0
    guesses: int = 0
    adapter_slots: int = 0
    row_options: tuple[str, ...] = STANDARD.names
    states: StatePlaces | None = None


class StepHandle(Protocol):
    """A step that was submitted."""

    def choose(self, masks: Ints | None) -> None:
        """Let a step go on whose plan has masked rows that sample: once, before its result and before another submit.

        Steps without such rows need no telling. Until then the device computes what comes before the choice.

        Args:
            masks: int32[R*N,ceil(V/32)], N = 1 + the most drafts of a row of the plan; bit i of word w of a masked row's says
                whether it may choose token 32 w + i: of its first when it chooses its first token, and so on.
        """
        ...

    def result(self) -> StepResult:
        """Wait for the step and fetch what it produced."""
        ...


class Executor(Protocol):
    """Runs plans one after another, in the order they were submitted."""

    def submit(self, plan: Plan) -> StepHandle:
        """Start a step and return at once; earlier steps may still be running.

        Steps run in the order they were submitted, each after all reads and writes of the one before. The scheduler relies on it:
        pages and slots given back while a step is in flight may be given to a sequence of the next one.
        """
        ...

    def capabilities(self) -> Capabilities:
        """The limits."""
        ...

    def counts(self) -> ExecutorCounts:
        """What was compiled and padded since the start."""
        ...
