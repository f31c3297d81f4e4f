"""Several models behind one server: an EngineClient of which every request takes the one that it names."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import fields
from typing import TypeVar

from jaxserve.engine.activity import Lateness
from jaxserve.engine.calls import ControlCall, EngineCall
from jaxserve.engine.client import EngineClient, EngineStats
from jaxserve.engine.death import EngineDeath, latest
from jaxserve.errors import EngineDeadError, InvalidRequestError, JaxserveError
from server.in_front import InFrontOf

Result = TypeVar("Result")


class ManyModels(InFrontOf):
    """Models with an engine client each. What is asked of a model is asked of the first; the rest is of all together.

    `server.requests.served` finds the client of the model that a request names.

    Args:
        clients: in the order of the configuration; no two have a name in common.
    """

    def __init__(self, clients: Sequence[EngineClient]) -> None:
        self.clients = tuple(clients)
        super().__init__(self.clients[0])

    async def abort(self, request_id: str) -> bool:
        return any([await one.abort(request_id) for one in self.clients])

    async def reset_prefix_cache(self) -> None:
        for one in self.clients:
            await one.reset_prefix_cache()

    async def call(self, call: EngineCall[Result]) -> Result:
        """Ask all; one whose engines are gone is left out. Raises EngineDeadError if all are.

        Raises InvalidRequestError for what is asked of one model: its weights are no other's.
        """
        if isinstance(call, ControlCall):
            names = ", ".join(one.model.name for one in self.clients)
            raise InvalidRequestError(
                f"weights are updated, and engines paused and put to sleep, where one model is served: not {names}"
            )
        answers: list[Result] = []
        gone: EngineDeadError | None = None
        for one in self.clients:
            try:
                answers.append(await one.call(call))
            except EngineDeadError as error:
                gone = error
        if not answers and gone is not None:
            raise gone
        return call.merged(answers)

    def stats(self) -> EngineStats:
        """The sums; a page is one of the first, and the imbalance that of the model which has most of it."""
        stats = [one.stats() for one in self.clients]
        sums = {item.name: sum(getattr(one, item.name) for one in stats) for item in fields(EngineStats)}
        return EngineStats(**{**sums, "page_size": stats[0].page_size, "imbalance": max(one.imbalance for one in stats)})

    def heartbeat_age(self) -> float:
        """Of the model whose engines turned last."""
        return min(one.heartbeat_age() for one in self.clients)

    def lateness(self) -> Lateness:
        """Of the model whose engines are least late."""
        return min((one.lateness() for one in self.clients), key=lambda one: one.worst)

    @property
    def death(self) -> EngineDeath | None:
        return latest(one.death for one in self.clients)

    def check_health(self) -> None:
        """Raise what the first says if no model takes requests."""
        failure: JaxserveError | None = None
        for one in self.clients:
            try:
                one.check_health()
            except JaxserveError as error:
                failure = failure or error
            else:
                return
        assert failure is not None, "there is a model at least"
        raise failure

    async def drain(self, timeout: float) -> None:
        await asyncio.gather(*(one.drain(timeout) for one in self.clients))


def clients_of(client: EngineClient) -> tuple[EngineClient, ...]:
    """The clients of the models that are behind one, itself where it is of one model."""
    return client.clients if isinstance(client, ManyModels) else (client,)


def adapter_base(client: EngineClient) -> EngineClient | None:
    """The client of the model that takes adapters, of those that are behind one; None if none does."""
    return next((one for one in clients_of(client) if one.model.takes_adapters), None)
