"""Plans by hand, for executors."""

from typing import Any

from jaxserve.sampling.options import MASKED, NUM_LOGPROBS, TEMPERATURE
from jaxserve.step.example import Row, example_plan
from jaxserve.step.plan import MoveKind, PageMove, Plan


def make_plan(*rows: Row, temperature: float = 0.0, num_logprobs: int = -1, masked: int = 0, **more: Any) -> Plan:
    """A plan of rows of (tokens computed, tokens in the cache after the step, pages)."""
    return example_plan(*rows, values={TEMPERATURE: temperature, NUM_LOGPROBS: num_logprobs, MASKED: masked}, **more)


Pairs = tuple[tuple[int, int], ...]


def copied(*pairs: tuple[int, int]) -> tuple[PageMove, ...]:
    """Moves from page to page."""
    return tuple(PageMove(MoveKind.COPY, *pair) for pair in pairs)


def swapped_out(*pairs: tuple[int, int]) -> tuple[PageMove, ...]:
    """Moves from page to swap slot."""
    return tuple(PageMove(MoveKind.TO_TIER, *pair) for pair in pairs)


def swapped_in(*pairs: tuple[int, int]) -> tuple[PageMove, ...]:
    """Moves from swap slot to page."""
    return tuple(PageMove(MoveKind.FROM_TIER, *pair) for pair in pairs)


def moved(plan: Plan, kind: MoveKind) -> Pairs:
    """(source, destination) of the plan's moves of a kind."""
    return tuple((move.source, move.destination) for move in plan.moves if move.kind is kind)
