"""What a sequence may say next, by llguidance's matchers, and the masks of many rows in parallel."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import cast

import numpy as np
from llguidance import LLMatcher

from jaxserve.errors import InvalidRequestError, JaxserveError
from jaxserve.grammar.compile import in_plain_words
from jaxserve.grammar.locate import first_line
from jaxserve.scheduler.request import Constraint
from jaxserve.step.plan import Ints
from jaxserve.types import MASK_BITS

FEW = 2  # rows whose masks are computed in the calling thread
MAX_THREADS = 32

# CPU time of a row's step: its mask, and following its token. Ordinary grammars take under a tenth of it, and llguidance's limits
# keep hostile ones near it. A row may be slow once: the first mask in a new state takes longest.
SLOW_SECONDS = 0.02
MAX_SLOW = 2


class GrammarConstraint:
    """A grammar as far as one sequence has followed it.

    Attributes:
        imposed: tokens that come next, one after another, where something beside the grammar says so; it allows them, too.

    Args:
        matcher: its own.
        clock: CPU seconds of the calling thread.
    """

    def __init__(self, matcher: LLMatcher, clock: Callable[[], float] = time.thread_time) -> None:
        self.matcher = matcher
        self.imposed: Sequence[int] = ()
        self._clock = clock
        self._accepted = 0
        self._spent = 0.0  # since the latest mask
        self._slow = 0

    @property
    def is_slow(self) -> bool:
        """Whether its steps have taken too long too often."""
        return self._slow >= MAX_SLOW

    def fill(self, address: int, size: int) -> None:
        """Write the mask of the next token to memory."""
        with self._timed():
            self.matcher.unsafe_compute_mask_ptr(address, size)
        self._slow += self._spent > SLOW_SECONDS
        self._spent = 0.0

    def accept(self, token: int) -> bool:
        with self._timed():
            taken = self.matcher.consume_token(token)
        if not taken:
            raise InvalidRequestError(
                f"the output left its grammar at token {token}: {_why(self.matcher)}", param="structured_outputs"
            )
        self._accepted += 1
        return not self.matcher.is_stopped()

    def forced(self) -> Sequence[int]:
        with self._timed():
            return self.matcher.compute_ff_tokens()

    def allows(self, tokens: Sequence[int]) -> int:
        return self.matcher.validate_tokens(list(tokens))

    def checkpoint(self) -> Callable[[], None]:
        accepted = self._accepted

        def back() -> None:
            self.matcher.rollback(self._accepted - accepted)  # where it cannot, the next token is told why
            self._accepted = accepted

        return back

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            self._spent += self._clock() - began


class GrammarMasker:
    """Masks of V tokens by grammars. Used by one thread, which others help with many rows."""

    def __init__(self, vocab_size: int) -> None:
        self.words = -(-vocab_size // MASK_BITS)
        self._helpers = max(1, min(MAX_THREADS, (os.cpu_count() or 2) * 4 // 5)) - 1
        self._threads = ThreadPoolExecutor(max(self._helpers, 1), thread_name_prefix="jaxserve-masks")

    def fill(self, rows: Sequence[tuple[int, Constraint]], masks: Ints) -> dict[int, JaxserveError]:
        computed: list[tuple[int, GrammarConstraint]] = []
        for row, constraint in cast(Sequence[tuple[int, GrammarConstraint]], rows):
            if constraint.imposed:
                _only(masks[row], constraint.imposed[0])
            else:
                computed.append((row, constraint))
        address, size = masks.ctypes.data, masks.strides[0]

        def work(share: Sequence[tuple[int, GrammarConstraint]]) -> None:
            for row, constraint in share:
                constraint.fill(address + row * size, size)

        shares = 1 + min(self._helpers, max(len(computed) - 1, 0) // FEW)
        helped = [self._threads.submit(work, computed[place::shares]) for place in range(1, shares)]
        work(computed[::shares])
        for one in helped:
            one.result()
        return {row: error for row, constraint in computed if (error := _failure(constraint, masks[row])) is not None}


def _failure(constraint: GrammarConstraint, mask: Ints) -> JaxserveError | None:
    if constraint.matcher.is_error() or not mask.any():
        what = f"the grammar allows no token after this output: {_why(constraint.matcher)}"
        return InvalidRequestError(what, param="structured_outputs")
    if constraint.is_slow:
        what = (
            f"structured_outputs: the grammar is too complex: {MAX_SLOW} steps took more than "
            f"{SLOW_SECONDS * 1e3:g} ms of CPU time each"
        )
        return InvalidRequestError(what, param="structured_outputs")
    return None


def _only(mask: Ints, token: int) -> None:
    """Make a mask allow one token."""
    mask[:] = 0
    mask.view(np.uint32)[token // MASK_BITS] = 1 << token % MASK_BITS


def _why(matcher: LLMatcher) -> str:
    return in_plain_words(first_line(matcher.get_error())) or str(matcher.stop_reason())
