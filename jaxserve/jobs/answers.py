"""What a job asks for each line, and what it gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from jaxserve.errors import ErrorCode
from jaxserve.jobs.lines import Line

# The request may be answered later: it is asked again. A slow reader was this process itself, as after it had been stopped.
ASKED_AGAIN = frozenset(
    {ErrorCode.QUEUE_FULL, ErrorCode.OVERLOADED, ErrorCode.RATE_LIMITED, ErrorCode.BUDGET_SPENT, ErrorCode.SLOW_READER}
)
# Nothing is answered any more: the job stops, and can be resumed.
STOPS_JOB = frozenset({ErrorCode.ENGINE_DEAD, ErrorCode.DRAINING})


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, or an error with its status; final for the line.

    Attributes:
        status: HTTP status; 200 goes to the output file, all else to the error file.
        request_id: of the engine's request; of one that was refused, what logs call it.
        body: what the endpoint would have sent.
    """

    status: int
    request_id: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The line is not asked, for a reason of the job, such as its time being over. It goes to the error file.

    Attributes:
        code: stable, such as "batch_expired".
        message: for people.
    """

    code: str
    message: str


class Answerer(Protocol):
    """Answers the lines of a job, many at a time."""

    async def answer(self, line: Line) -> Answer | NoAnswer:
        """Answer a line. Cancelling aborts.

        Raises JaxserveError for what is not the line's fault alone: codes of ASKED_AGAIN, after which the line is asked again,
        and of STOPS_JOB.
        """
        ...
