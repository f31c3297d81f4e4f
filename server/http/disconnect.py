"""Work that ends when its client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from jaxserve.errors import CancelledRequestError

Result = TypeVar("Result")


async def until_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The work's result. Cancels the work and raises CancelledRequestError as soon as the client disconnects.

    The request's body must have been read: nothing but the disconnect may be left to receive.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise CancelledRequestError("the client went away")
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
