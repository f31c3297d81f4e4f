"""What a sequence may say next, by llguidance's matchers, and the masks of many rows in parallel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
from llguidance import LLExecutor, LLMatcher

from jaxserve.errors import InvalidRequestError, JaxserveError
from jaxserve.scheduler.request import Constraint
from jaxserve.step.plan import Ints
from jaxserve.types import MASK_BITS

FEW = 2  # rows whose masks are computed in the calling thread


class GrammarConstraint:
    """A grammar as far as one sequence has followed it.

    Attributes:
        imposed: tokens that come next, one after another, where something beside the grammar says so; it allows them, too.

    Args:
        matcher: its own.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher
        self.imposed: Sequence[int] = ()
        self._accepted = 0

    def accept(self, token: int) -> bool:
        if not self.matcher.consume_token(token):
            raise InvalidRequestError(
                f"the output left its grammar at token {token}: {self.matcher.get_error()}", param="structured_outputs"
            )
        self._accepted += 1
        return not self.matcher.is_stopped()

    def forced(self) -> Sequence[int]:
        return self.matcher.compute_ff_tokens()

    def allows(self, tokens: Sequence[int]) -> int:
        return self.matcher.validate_tokens(list(tokens))

    def checkpoint(self) -> Callable[[], None]:
        accepted = self._accepted

        def back() -> None:
            self.matcher.rollback(self._accepted - accepted)  # where it cannot, the next token is told why
            self._accepted = accepted

        return back


class GrammarMasker:
    """Masks of V tokens by grammars. Used by one thread, which llguidance's own help with many rows."""

    def __init__(self, vocab_size: int) -> None:
        self.words = -(-vocab_size // MASK_BITS)
        self._threads = LLExecutor()

    def fill(self, rows: Sequence[tuple[int, Constraint]], masks: Ints) -> dict[int, JaxserveError]:
        matchers: list[tuple[int, LLMatcher]] = []
        for row, constraint in cast(Sequence[tuple[int, GrammarConstraint]], rows):
            if constraint.imposed:
                _only(masks[row], constraint.imposed[0])
            else:
                matchers.append((row, constraint.matcher))
        size = masks.strides[0]
        if len(matchers) <= FEW:
            for row, matcher in matchers:
                matcher.unsafe_compute_mask_ptr(masks[row].ctypes.data, size)
        else:
            places = [(matcher, row) for row, matcher in matchers]
            self._threads.unsafe_compute_mask_ptr(places, masks.ctypes.data, size, len(masks))
        return {row: _dead_end(matcher) for row, matcher in matchers if matcher.is_error() or not masks[row].any()}


def _only(mask: Ints, token: int) -> None:
    """Make a mask allow one token."""
    mask[:] = 0
    mask.view(np.uint32)[token // MASK_BITS] = 1 << token % MASK_BITS


def _dead_end(matcher: LLMatcher) -> JaxserveError:
    why = matcher.get_error() or str(matcher.stop_reason())
    return InvalidRequestError(f"the grammar allows no token after this output: {why}", param="structured_outputs")
