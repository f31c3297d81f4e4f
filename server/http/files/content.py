"""A file's content as an answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import BinaryIO
from urllib.parse import quote

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from server.batches.records import StoredFile
from server.http.storage import Storage

CONTENT_TYPE = "application/octet-stream"
_PIECE = 256 * 2**10


class FileContent(StreamingResponse):
    """Sends a file as the client reads it, and closes it whatever happens.

    Args:
        storage: reads it.
        record: what is known of it.
        content: its open content.
    """

    def __init__(self, storage: Storage, record: StoredFile, content: BinaryIO) -> None:
        self._storage = storage
        self._content = content
        headers = {
            "Content-Length": str(record.bytes),
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(record.filename, safe='')}",
            "X-Content-Type-Options": "nosniff",
        }
        super().__init__(self._pieces(), headers=headers, media_type=CONTENT_TYPE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._content.close()

    async def _pieces(self) -> AsyncIterator[bytes]:
        while piece := await self._storage.run(self._content.read, _PIECE):
            yield piece
