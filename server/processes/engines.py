"""What a supervisor asks of whatever keeps the engines that its front ends speak to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol

import msgspec

from jaxserve.config.fields import EngineConfig
from jaxserve.config.server import ServerConfig
from jaxserve.engine.remote.builders import BuildProgress
from jaxserve.engine.remote.reports import EngineSpec, Move
from jaxserve.engine.replicas.resuming import Orders
from jaxserve.errors import JaxserveError
from server.processes.engine_keeper import EngineKeeper
from server.processes.runtime import RuntimeDirectory
from server.processes.specs import FleetSpec, Notice, TrialQuestion
from server.processes.trials import Trials


class Engines(Protocol):
    """One engine or many."""

    @property
    def up(self) -> bool:
        """Whether there is one, which front ends wait for."""
        ...

    @property
    def target(self) -> str | FleetSpec:
        """What a front end that starts now is told to connect to."""
        ...

    async def run(self) -> None:
        """Keep them until cancelled. Raises what keeps the server from starting, or EngineDeadError if they cannot be kept."""
        ...

    async def stop(self) -> None:
        """End them; `run` must have been cancelled."""
        ...

    def answer(self, process: str, question: TrialQuestion) -> Orders | None:
        """Take what a process that speaks to the engine says or asks of trials."""
        ...

    def process_gone(self, process: str) -> None:
        """A process that speaks to the engine ended."""
        ...

    def move(self) -> None:
        """The runtime directory is another."""
        ...


@dataclass(frozen=True, slots=True)
class EngineHost:
    """The supervisor, as what keeps its engines sees it.

    Attributes:
        on_ready: to be told, once, what an engine says of itself.
        on_gone: to be told the process id of each that ended here.
        explain: to be told why there is no engine now, and whether there will be none any more.
        tell: passes a notice on to all front ends, those that start later too.
    """

    runtime: RuntimeDirectory
    progress: BuildProgress
    on_ready: Callable[[str], None]
    on_gone: Callable[[int], None]
    explain: Callable[[JaxserveError, bool], None]
    tell: Callable[[Notice], None]


OpenEngines = Callable[[EngineHost], Engines]


class OwnEngine:
    """One engine, in a child process of the supervisor."""

    def __init__(self, spec: EngineSpec, config: ServerConfig, host: EngineHost) -> None:
        self._spec = spec
        self._runtime = host.runtime
        self._trials = Trials(host.tell)
        self._keeper = EngineKeeper(
            self._spec_of,
            max_restarts=config.max_engine_restarts,
            hang_timeout=config.engine_hang_timeout,
            on_ready=host.on_ready,
            on_gone=host.on_gone,
            explain=host.explain,
            progress=host.progress,
            deaths=self._trials,
        )

    @property
    def up(self) -> bool:
        return self._keeper.up

    @property
    def target(self) -> str:
        return self._runtime.engine

    async def run(self) -> None:
        await self._keeper.run()

    async def stop(self) -> None:
        await self._keeper.stop()

    def answer(self, process: str, question: TrialQuestion) -> Orders | None:
        return self._trials.answer(process, question)

    def process_gone(self, process: str) -> None:
        self._trials.gone(process)

    def move(self) -> None:
        self._keeper.move(Move(self._runtime.engine, str(self._runtime.metrics)))

    def _spec_of(self, restarts: int) -> EngineSpec:
        return msgspec.structs.replace(
            self._spec, address=self._runtime.engine, restarts=restarts, metrics=str(self._runtime.metrics)
        )


def engine_spec(engine: EngineConfig, config: ServerConfig) -> EngineSpec:
    """What the engine process of a configuration builds; whoever keeps it says where it listens."""
    return EngineSpec(address="", argument=asdict(engine), log_level=config.log_level, log_format=config.log_format)


def own_engine(spec: EngineSpec, config: ServerConfig) -> OpenEngines:
    """An engine of the server's own."""
    return lambda host: OwnEngine(spec, config, host)
