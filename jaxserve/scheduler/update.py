"""What the scheduler tells of a sequence."""

from __future__ import annotations

from dataclasses import dataclass

from jaxserve.errors import JaxserveError
from jaxserve.scheduler.plan import LogprobRows
from jaxserve.types import FinishReason


@dataclass(slots=True)
class Update:
    """What one step did for one sequence.

    Attributes:
        id: the sequence.
        token: its new token, or None if it was only scored (and ended by that, if nothing was to be generated) or failed.
        logprobs, index: row `index` of `logprobs` holds the token's log-probabilities, if it wanted them.
        score: log-probabilities of some more of its prompt tokens, in order.
        reason: set when it finished.
        error: set when it failed instead: a deadline passed, or something went wrong with this sequence alone.
        matched: the stop token that ended it (None for end-of-sequence).
        num_cached, queue_time: of its start; given with every token.
    """

    id: str
    token: int | None = None
    logprobs: LogprobRows | None = None
    index: int = 0
    score: LogprobRows | None = None
    reason: FinishReason | None = None
    error: JaxserveError | None = None
    matched: int | None = None
    num_cached: int = 0
    queue_time: float = 0.0
