"""Streams that survive their connection: each under an id that its tenant chose, read again from any event on."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from jaxserve.errors import InvalidRequestError, NotFoundError
from server.gateway.messages import Entry
from server.gateway.recordings import Make, Recordings, Wish

STREAM_ID = "^[ -.0-~]{1,255}$"  # printable ASCII that is one part of a path
_PREFIX = "stream\n"  # of their keys in the ledger: no idempotency key has a line break


class ResumableStreams:
    """Answers that go on without their client, made by this front end or by another.

    Args:
        grace: seconds that an answer goes on after its last reader has left.
    """

    def __init__(self, recordings: Recordings, grace: float = 0.0) -> None:
        self._recordings = recordings
        self._grace = grace

    def begin(self, account: str, scope: str, stream_id: str, make: Make) -> AsyncGenerator[bytes, None]:
        """The pieces of a new answer, in whose favour that of an earlier request with the id ends.

        Args:
            account: whose share of what is kept it takes from.
            scope: the tenant, whose ids are its own.

        Raises what `make` raises, and ConflictError once it is ended for a later one.
        """
        return self._pieces(Wish(account, scope, _PREFIX + stream_id, _what(stream_id), "anew"), make)

    def resume(self, account: str, scope: str, stream_id: str, have: int) -> AsyncGenerator[bytes, None]:
        """The head of an answer, then its pieces after the first `have`, as they come.

        Raises NotFoundError where there is none with the id, ConflictError for one that is too long to be kept, or is ended,
        and InvalidRequestError once it is over and has less.
        """
        return self._pieces(Wish(account, scope, _PREFIX + stream_id, _what(stream_id), "never", skip=have), None)

    async def end(self, scope: str, stream_id: str) -> None:
        """End an answer wherever it is made, and forget it. Raises NotFoundError if there is none."""
        if not await self._recordings.revoke((scope, _PREFIX + stream_id)):
            raise NotFoundError(f"{_what(stream_id)} does not exist, or is no longer kept")

    async def listed(self, account: str, scope: str) -> list[Entry]:
        """The tenant's answers, by their ids; oldest first."""
        entries = await self._recordings.listed(account, scope, _PREFIX)
        return [msgspec.structs.replace(entry, key=entry.key.removeprefix(_PREFIX)) for entry in entries]

    async def _pieces(self, wish: Wish, make: Make | None) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._recordings.read(wish, make, self._grace)) as pieces:
            async for _, piece in pieces:
                yield piece


def check_stream_id(stream_id: str, param: str) -> None:
    """Raise InvalidRequestError for what is no id."""
    if re.fullmatch(STREAM_ID, stream_id) is None:
        raise InvalidRequestError(f"{param} must have 1 to 255 printable ASCII characters, without /", param=param)


def _what(stream_id: str) -> str:
    return f"the stream {stream_id!r}"
