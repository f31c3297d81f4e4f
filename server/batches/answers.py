"""Who answers the lines of a batch: the engine, in turns with other batches and at the tenant's cost; or nobody any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from jaxserve.errors import BudgetError, EngineDeadError
from jaxserve.jobs.answers import Answer, Answerer, NoAnswer
from jaxserve.jobs.lines import Line
from jaxserve.jobs.order import sequences
from server.batches.records import Batch
from server.batches.turns import Load, Turns
from server.gateway.call import Call
from server.gateway.gateway import Gateway
from server.gateway.usage import UsageEvent

BUDGET_SECONDS = 30.0  # between two looks at a spent budget, which somebody may raise
ENGINE_SECONDS = 0.2  # between two looks at an engine that is gone
_BYTES_A_TOKEN = 4

Ask = Callable[[Line, str, Call], Awaitable[Answer | NoAnswer]]
"""Answers a line as work of a tenant, at the cost of a call; raises as Answers.answer does."""

EXPIRED = NoAnswer("batch_expired", "This request could not be executed before the completion window expired.")
MODEL_CHANGED = NoAnswer("model_changed", "The server has another model than the one that the batch was begun with.")


class LineAnswerer(Answerer, Protocol):
    """Answers, that are told what became of them."""

    def committed(self) -> None:
        """There was a commit. Told of each, about once a second."""
        ...

    def ended(self) -> None:
        """Everything that was answered is committed."""
        ...


@dataclass(frozen=True, slots=True)
class Nobody:
    """Answers no line. See LineAnswers."""

    word: NoAnswer

    async def answer(self, line: Line) -> NoAnswer:
        return self.word

    def committed(self) -> None:
        """There was a commit, which costs nothing."""

    def ended(self) -> None:
        """Likewise."""


@dataclass(slots=True)
class _Usage:
    """Of one line: kept for as long as it may have to be asked again."""

    events: list[UsageEvent] = field(default_factory=list)

    def add(self, event: UsageEvent) -> None:
        self.events.append(event)


@dataclass(slots=True)
class EngineAnswerer:
    """Answers the lines of one batch as requests of the key that created it. See LineAnswers.

    What a line took is billed when its answer is committed: what a killed process did not commit is done, and billed, again.

    Attributes:
        check_health: raises EngineDeadError while the engine is gone, which is waited for.
    """

    batch: Batch
    ask: Ask
    turns: Turns
    gateway: Gateway
    check_health: Callable[[], None]
    _answered: list[UsageEvent] = field(default_factory=list)  # since the latest commit that is known of
    _committing: list[UsageEvent] = field(default_factory=list)  # before it: some may have come too late for it

    async def answer(self, line: Line) -> Answer | NoAnswer:
        """Answer a line, as soon as it is its turn and there is an engine.

        Raises AuthenticationError where the key is gone, BudgetError while the day's tokens are spent, and what `ask` raises.
        """
        load = Load(sequences(line.body), len(msgspec.json.encode(line.body)) // _BYTES_A_TOKEN)
        while True:
            async with self.turns.turn(self.batch.owner, self.batch.id, load):
                try:
                    return await self._charged(line)
                except EngineDeadError:
                    pass  # the turn is given back first
                except BudgetError as error:
                    wait = min(error.retry_after or BUDGET_SECONDS, BUDGET_SECONDS)
                    raise BudgetError(error.message, param=error.param, retry_after=wait) from error
            await self._engine_is_back()

    async def _charged(self, line: Line) -> Answer | NoAnswer:
        batch, usage = self.batch, _Usage()
        call = self.gateway.work(f"{batch.id}-{line.number}", batch.owner, batch.wanted.key_id, usage)
        try:
            answer = await self.ask(line, batch.owner, call)
            call.handed()
        finally:
            call.close()
        self._answered += usage.events
        return answer

    def committed(self) -> None:
        """Bill what was answered before the commit began."""
        self.gateway.bill(self._committing)
        self._committing, self._answered = self._answered, []

    def ended(self) -> None:
        self.gateway.bill((*self._committing, *self._answered))
        self._committing, self._answered = [], []

    async def _engine_is_back(self) -> None:
        """Wait for an engine. Raises DrainingError."""
        while True:
            try:
                self.check_health()
            except EngineDeadError:
                await asyncio.sleep(ENGINE_SECONDS)
            else:
                return
