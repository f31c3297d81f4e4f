"""An engine process as its parent sees it."""

from __future__ import annotations

import signal

import msgspec

from jaxserve.children import Child, describe_exit, spawn
from jaxserve.config.runtime import METRICS_VARIABLE
from jaxserve.engine.remote.builders import BuildProgress
from jaxserve.engine.remote.codec import encode
from jaxserve.engine.remote.reports import EngineSpec, Failed, Move, Progressed, Pulse, Ready, decode_report
from jaxserve.errors import EngineDeadError


class EngineProcess:
    """Started by `start`; see there.

    Attributes:
        heartbeat: time of the latest turn that it told of, by the machine's monotonic clock; None before the first.
    """

    def __init__(self, child: Child) -> None:
        self._child = child
        self.heartbeat: float | None = None

    @classmethod
    async def start(cls, spec: EngineSpec) -> EngineProcess:
        """Start an engine process. It must be waited for in this event loop, whose thread must be the main one."""
        environment = {} if spec.metrics is None else {METRICS_VARIABLE: spec.metrics}
        return cls(await spawn("jaxserve.engine.remote.child", msgspec.json.encode(spec), environment=environment))

    @property
    def pid(self) -> int:
        return self._child.process.pid

    async def ready(self, progress: BuildProgress) -> str:
        """Wait until it listens. Returns what it says of itself, for people.

        Raises what kept it from being built, or EngineDeadError if it ended without a word.
        """
        while (content := await self._child.receive()) is not None:
            report = decode_report(content)
            if isinstance(report, Progressed):
                progress(report.what, report.done, report.total)
            elif isinstance(report, Ready):
                return report.banner
            elif isinstance(report, Failed):
                raise report.error
        raise EngineDeadError(f"the engine's process ended while it started, {describe_exit(await self._child.wait())}")

    async def ended(self) -> int:
        """Wait for its end, and listen to its pulse until then. Returns the exit code, negative for a signal."""
        while (content := await self._child.receive()) is not None:
            report = decode_report(content)
            if isinstance(report, Pulse):
                self.heartbeat = report.heartbeat
        return await self._child.wait()

    def move(self, move: Move) -> None:
        """Let it listen and share its metrics elsewhere; what is connected stays so."""
        self._child.send(encode(move))

    async def stop(self, patience: float) -> None:
        """Ask it to end after its current step, and kill it after `patience` seconds."""
        self._child.signal(signal.SIGTERM)
        await self._child.end_within(patience)

    async def kill(self) -> None:
        await self._child.kill()
