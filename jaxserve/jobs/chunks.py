"""Lines on their way to engines elsewhere and back, many at a time: where a message costs milliseconds, a line is too little.

Chunks are pickled: both ends run this code, and nobody else writes to what is between them.
"""

from __future__ import annotations

import asyncio
import pickle
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from jaxserve.errors import EngineDeadError, JaxserveError
from jaxserve.jobs.answers import STOPS_JOB, Answer, Answerer, NoAnswer
from jaxserve.jobs.lines import Line

LINGER_SECONDS = 0.05  # that a chunk with room waits for further lines
MOST_DEATHS = 3  # of engines, in a job: a request that kills every engine it is given must end the job in the end

LineOutcome = Answer | NoAnswer | JaxserveError


@dataclass(frozen=True, slots=True)
class _Chunk:
    number: int
    lines: Sequence[Line]


@dataclass(frozen=True, slots=True)
class _Outcomes:
    number: int
    outcomes: Sequence[LineOutcome]


@dataclass(frozen=True, slots=True)
class _Lost:
    number: int
    engine: str
    reason: str


class Chunks:
    """Gathers lines into chunks and hands them on; an Answers whose engines are elsewhere. Belongs to one event loop.

    Args:
        send: given every chunk; must not block.
        size: lines of a chunk at most.
        on_the_way: chunks that are under way at a time; with fewer, one with room is sent too.
    """

    def __init__(self, send: Callable[[bytes], None], *, size: int, on_the_way: int) -> None:
        self._send = send
        self._size = size
        self._most = on_the_way
        self._gathered: deque[tuple[Line, asyncio.Future[LineOutcome]]] = deque()
        self._sent: dict[int, list[tuple[Line, asyncio.Future[LineOutcome]]]] = {}
        self._dead: set[str] = set()
        self._count = 0
        self._lingering: asyncio.TimerHandle | None = None
        self._failure: JaxserveError | None = None

    async def answer(self, line: Line) -> Answer | NoAnswer:
        """See Answers. Raises EngineDeadError once the way is cut. Cancelling forgets the line; an engine may answer it still."""
        if self._failure is not None:
            raise self._failure.copy()
        future: asyncio.Future[LineOutcome] = asyncio.get_running_loop().create_future()
        self._gathered.append((line, future))
        self._move()
        outcome = await future
        if isinstance(outcome, JaxserveError):
            raise outcome
        return outcome

    def settle(self, data: bytes) -> None:
        """A chunk came back: answered, or from an engine that died, in which case another one gets its lines."""
        came: _Outcomes | _Lost = pickle.loads(data)
        sent = self._sent.pop(came.number, ())  # none: it came twice
        if isinstance(came, _Lost):
            self._gathered.extendleft(reversed(sent))
            self._dead.add(came.engine)
            if len(self._dead) > MOST_DEATHS:
                self.fail(EngineDeadError(f"{len(self._dead)} engines died, one after another: {came.reason}"))
        else:
            for (_, future), outcome in zip(sent, came.outcomes, strict=False):
                if not future.done():
                    future.set_result(outcome)
        self._move()

    def fail(self, error: JaxserveError) -> None:
        """Nothing comes back any more: every line that waits ends with the error, and so do those to come."""
        self._failure = error
        for _, future in (*self._gathered, *chain.from_iterable(self._sent.values())):
            if not future.done():
                future.set_result(error.copy())
        self._gathered.clear()
        self._sent.clear()

    def _move(self) -> None:
        while len(self._gathered) >= self._size and len(self._sent) < self._most:
            self._send_one()
        if self._gathered and self._lingering is None and len(self._sent) < self._most:
            self._lingering = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._send_rest)

    def _send_rest(self) -> None:
        self._lingering = None
        if self._gathered and len(self._sent) < self._most:
            self._send_one()
            self._move()

    def _send_one(self) -> None:
        count = min(self._size, len(self._gathered))
        taken = [self._gathered.popleft() for _ in range(count)]
        wanted = [(line, future) for line, future in taken if not future.done()]
        if not wanted:
            return
        self._count += 1
        self._sent[self._count] = wanted
        self._send(pickle.dumps(_Chunk(self._count, [line for line, _ in wanted])))


async def answer_chunk(answers: Answerer, data: bytes, engine: str) -> tuple[bytes, bool]:
    """At an engine: what is sent back for a chunk when its last line is answered, and whether the engine answers any more.

    Args:
        answers: of the engine.
        data: the chunk.
        engine: a name that no other engine has.
    """
    chunk: _Chunk = pickle.loads(data)
    outcomes = await asyncio.gather(*(_outcome(answers, line) for line in chunk.lines))
    for outcome in outcomes:
        if isinstance(outcome, JaxserveError) and outcome.code in STOPS_JOB:
            return pickle.dumps(_Lost(chunk.number, engine, outcome.message)), False
    return pickle.dumps(_Outcomes(chunk.number, outcomes)), True


async def _outcome(answers: Answerer, line: Line) -> LineOutcome:
    try:
        return await answers.answer(line)
    except JaxserveError as error:
        return error.copy()
