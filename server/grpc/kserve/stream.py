"""Many requests on one call: side by side, each with answers and a bill of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from server.context import RequestContext

# Requests that run at once; the client waits to send more.
MAX_REQUESTS = 256

Message = TypeVar("Message")


@dataclass(slots=True)
class _Piece(Generic[Message]):
    """An answer on its way; `taken` once the transport has it."""

    message: Message
    taken: asyncio.Event = field(default_factory=asyncio.Event)


async def side_by_side(
    payloads: AsyncIterator[bytes],
    answer: Callable[[bytes, RequestContext], AsyncGenerator[Message, None]],
    context: RequestContext,
) -> AsyncGenerator[Message, None]:
    """What `answer` makes of each payload, as it comes, until all are answered. Closing it ends them all.

    Each is answered in a context of its own, whose call is a part of the stream's.

    No request runs ahead of what the client takes, but for what the engine's own buffers hold.
    """
    pieces: asyncio.Queue[_Piece[Message] | Exception | None] = asyncio.Queue()  # at most one piece a request
    free = asyncio.Semaphore(MAX_REQUESTS)

    async def one(payload: bytes) -> None:
        part = None if context.call is None else context.call.part()
        try:
            async with aclosing(answer(payload, replace(context, call=part))) as messages:
                async for message in messages:
                    piece = _Piece(message)
                    await pieces.put(piece)
                    await piece.taken.wait()
                    if part is not None:
                        part.handed()
        finally:
            if part is not None:
                part.close()

    async def read() -> None:
        try:
            async with asyncio.TaskGroup() as running:
                async for payload in payloads:
                    await free.acquire()
                    task = running.create_task(one(payload))
                    task.add_done_callback(lambda _: free.release())
            await pieces.put(None)
        except Exception as error:  # raised again where the pieces are read
            await pieces.put(error)

    reader = asyncio.create_task(read())
    try:
        while (piece := await pieces.get()) is not None:
            if isinstance(piece, Exception):
                raise piece
            yield piece.message
            piece.taken.set()
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
