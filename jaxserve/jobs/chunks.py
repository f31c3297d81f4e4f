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

from jaxserve.errors import EngineDeadError, EngineKilledError, JaxserveError
from jaxserve.jobs.answers import STOPS_JOB, Answer, Answerer, NoAnswer
from jaxserve.jobs.lines import Line

LINGER_SECONDS = 0.05  # that a chunk with room waits for further lines
MOST_DEATHS = 3  # of engines in a row with nothing answered between, besides those that halve a chunk: then the job ends

LineOutcome = Answer | NoAnswer | JaxserveError
_Asked = tuple[Line, asyncio.Future[LineOutcome]]


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
        self._gathered: deque[_Asked] = deque()
        self._sent: dict[int, list[_Asked]] = {}
        self._apart: deque[list[_Asked]] = deque()  # halves of chunks that were with engines that died
        self._suspected: set[int] = set()  # lines that were alone with one
        self._dead: set[str] = set()  # since the last chunk that was answered
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
        """A chunk came back: answered, or from an engine that died. Then others get its lines, in halves.

        A line that was alone with two engines that died is what they died of.
        """
        came: _Outcomes | _Lost = pickle.loads(data)
        sent = self._sent.pop(came.number, [])  # none: it came twice
        if isinstance(came, _Lost):
            self._dead.add(came.engine)
            if len(self._dead) > MOST_DEATHS + self._size.bit_length():
                self._apart.append(sent)
                self.fail(EngineDeadError(f"{len(self._dead)} engines died, one after another: {came.reason}"))
            else:
                self._halve(sent)
        else:
            self._dead.clear()
            for (_, future), outcome in zip(sent, came.outcomes, strict=False):
                if not future.done():
                    future.set_result(outcome)
        self._move()

    def fail(self, error: JaxserveError) -> None:
        """Nothing comes back any more: every line that waits ends with the error, and so do those to come."""
        self._failure = error
        for _, future in (*self._gathered, *chain(*self._apart), *chain(*self._sent.values())):
            if not future.done():
                future.set_result(error.copy())
        self._gathered.clear()
        self._apart.clear()
        self._sent.clear()

    def _halve(self, sent: list[_Asked]) -> None:
        if len(sent) == 1 and sent[0][0].number in self._suspected:
            _, future = sent[0]
            if not future.done():
                future.set_result(NoAnswer(EngineKilledError.code, "two engines died while they ran this request alone"))
            return
        if len(sent) == 1:
            self._suspected.add(sent[0][0].number)
        middle = -(-len(sent) // 2)
        self._apart.extend(half for half in (sent[:middle], sent[middle:]) if half)

    def _move(self) -> None:
        while self._apart and len(self._sent) < self._most:
            self._send_these(self._apart.popleft())
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
        self._send_these([self._gathered.popleft() for _ in range(count)])

    def _send_these(self, taken: list[_Asked]) -> None:
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
