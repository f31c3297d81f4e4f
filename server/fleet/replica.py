"""A replica: an engine in a child process, kept running, and what it says of itself to a fleet. Knows nothing of Ray."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

import msgspec

from jaxserve.engine.calls import AskDemand
from jaxserve.engine.link import EngineLoad
from jaxserve.engine.remote.link import RemoteLink
from jaxserve.engine.remote.reports import EngineSpec
from jaxserve.errors import EngineDeadError, JaxserveError
from jaxserve.metrics.shared import remove_process
from jaxserve.routing.demand import Demand
from server.fleet.directory import TELL_SECONDS, Listing
from server.processes.engine_keeper import EngineKeeper
from server.processes.runtime import RuntimeDirectory

_LOG = logging.getLogger(__name__)

DEMAND_SECONDS = 1.0  # that the engine may take to say what is asked of it: a second later it is asked again
IDLE_POLL = 0.1  # seconds between looks whether a replica that leaves still runs something

Tell = Callable[[Listing], Awaitable[None]]


class Replica:
    """One engine. Belongs to the event loop that `start` is called in.

    Args:
        listing: how the fleet finds it; its address is where the engine listens.
        engine: what it builds; its address is filled in.
        max_restarts, hang_timeout: see EngineKeeper.
        tell: tells the directory that the replica takes requests.
    """

    def __init__(self, listing: Listing, engine: EngineSpec, *, max_restarts: int, hang_timeout: float, tell: Tell) -> None:
        self._listing = listing
        self._engine = engine
        self._tell = tell
        self._runtime = RuntimeDirectory(None)
        self._ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._keeper = EngineKeeper(
            self._spec,
            max_restarts=max_restarts,
            hang_timeout=hang_timeout,
            on_ready=self._ready.set_result,
            on_gone=self._bury,
            explain=lambda error, final: None,
            progress=self._progress,
        )
        self._link: RemoteLink | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._leaving = False

    async def start(self) -> str:
        """Build the engine and list it. Returns what it says of itself; raises what keeps it from being built."""
        self._keeping = asyncio.create_task(self._keeper.run())
        await asyncio.wait((self._keeping, self._ready), return_when=asyncio.FIRST_COMPLETED)
        if self._keeping.done():
            self._keeping.result()
        self._link = RemoteLink(self._listing.address, None if self._engine.keys is None else self._engine.keys.public)
        await self._link.described()
        self._telling = asyncio.create_task(self._tell_on())
        return self._ready.result()

    def check(self) -> None:
        """Raise EngineDeadError, or what ended the engine, if it is not there and will not come back by itself."""
        if self._keeping is None or not self._keeping.done():
            return
        self._keeping.result()
        raise EngineDeadError("the engine was stopped")

    def load(self) -> EngineLoad:
        """How much runs and waits in it, whoever it is for."""
        return EngineLoad() if self._link is None else self._link.load()

    async def demand(self) -> Demand | None:
        """What its requests still ask of it; None while the engine is not there, or does not say so in time."""
        if self._link is None:
            return None
        try:
            async with asyncio.timeout(DEMAND_SECONDS):
                return await self._link.call(AskDemand())
        except (JaxserveError, TimeoutError):
            return None

    async def stop(self, patience: float) -> None:
        """Wait until nothing runs, `patience` seconds at most, and end the engine; the directory was told before."""
        self._leaving = True
        if self._telling is not None:
            self._telling.cancel()
        deadline = time.monotonic() + patience
        while (load := self.load()).running + load.waiting > 0 and time.monotonic() < deadline:
            await asyncio.sleep(IDLE_POLL)
        if self._link is not None:
            await self._link.close()
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError, JaxserveError):
                await self._keeping
        await self._keeper.stop()
        await asyncio.to_thread(self._runtime.remove)

    async def _tell_on(self) -> None:
        """Tell the directory every second for as long as there is an engine; one that cannot be reached is tried again."""
        while True:
            if self._keeper.up:
                try:
                    await self._tell(self._listing)
                except Exception as error:  # of whatever carries it: the next word may get there
                    _LOG.warning("the directory was not told of replica %s: %r", self._listing.replica, error)
            await asyncio.sleep(TELL_SECONDS)

    def _spec(self, restarts: int) -> EngineSpec:
        return msgspec.structs.replace(
            self._engine, address=self._listing.address, restarts=restarts, metrics=str(self._runtime.metrics)
        )

    def _bury(self, process_id: int) -> None:
        with contextlib.suppress(OSError):  # metrics are not worth a replica
            remove_process(self._runtime.metrics, process_id)

    def _progress(self, what: str, done: int, total: int) -> None:
        if done == total:
            _LOG.info("replica %s: %s, %d of %d", self._listing.replica, what, done, total)
