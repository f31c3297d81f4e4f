"""Answers that are being made here, for those who wait for them on other front ends, or end them there."""

from __future__ import annotations

import asyncio

from jaxserve.errors import JaxserveError
from server.gateway.ledger import UsageLedger
from server.gateway.messages import Share, Wanted, Watch
from server.gateway.recording import Recording
from server.gateway.results import WANTED_SECONDS, Name

POLL_SECONDS = 0.1  # between looks whether anybody waits, and between looks of those who wait


class Sharing:
    """Tells the ledger the pieces of what is made here, while anybody waits for them elsewhere and of that alone; ends what is
    revoked there.
    """

    def __init__(self, ledger: UsageLedger, owner: str) -> None:
        self._ledger = ledger
        self._owner = owner
        self._made_here: dict[str, tuple[Name, Recording]] = {}  # by the token of its claim
        self._looking: asyncio.Task[None] | None = None

    def begin(self, token: str, name: Name, recording: Recording) -> None:
        self._made_here[token] = name, recording
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())

    def end(self, token: str) -> None:
        del self._made_here[token]

    async def _look(self) -> None:
        while self._made_here:
            await asyncio.sleep(POLL_SECONDS)
            try:
                wanted = await self._ledger.ask(Watch(self._owner))
                assert isinstance(wanted, Wanted)
                for token in wanted.revoked:
                    if token in self._made_here:
                        self._made_here[token][1].revoke()
                for token, count in wanted.pieces.items():
                    await self._share(token, count)
            except JaxserveError:
                continue  # who waits is told the same
        self._looking = None

    async def _share(self, token: str, count: int | None) -> None:
        name, recording = self._made_here.get(token, (None, None))
        if name is None or recording is None:
            return
        recording.follow(WANTED_SECONDS)
        if recording.too_long:
            await self._ledger.ask(Share(token, *name, 0, [], too_long=True))
        elif count is not None and recording.kept and (pieces := recording.after(count)):
            await self._ledger.ask(Share(token, *name, count, pieces))
