"""Bodies read as RFC 8259 says: UTF-8, no NaN, no half of a surrogate pair, bounded depth."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from jaxserve.errors import InvalidRequestError
from jaxserve.untrusted import check_json, refused

# Reading values takes the server's one thread for all: as many as take it a few hundredths of a second. A member of an object
# takes as long as some values of a list.
MAX_VALUES = 524_288
_A_MEMBER = 3
LARGE = 64 * 1024  # bytes: smaller ones take a few milliseconds at most


class StrictJsonRoute(APIRoute):
    """A route that reads its body with msgspec: stricter than the standard library's parser, and faster."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            strictly = _StrictRequest(request.scope, request.receive)
            body = await strictly.body()
            values = body.count(b",") + _A_MEMBER * body.count(b":")
            if values > MAX_VALUES:
                raise InvalidRequestError(
                    f"the body must hold at most {MAX_VALUES} values, and has {values} by its commas, and colons, which count as "
                    f"{_A_MEMBER}"
                )
            try:
                with refused(None):
                    return await handle(strictly)
            except RequestValidationError as error:
                if strictly.refusal is None:
                    raise
                raise strictly.refusal from error

        return strict


class _StrictRequest(Request):
    refusal: InvalidRequestError | None = None  # which says more than the framework would

    async def json(self) -> Any:
        """The body's value. Raises JSONDecodeError, which the framework expects, for whatever is wrong with it."""
        body = await self.body()
        await self.app.state.large_bodies.turn(len(body))
        try:
            value = _read(body)
            check_json(value, body)
            return value
        except InvalidRequestError as error:
            self.refusal = error
            raise json.JSONDecodeError(error.message, "", 0) from error
        except UnicodeDecodeError as error:
            raise json.JSONDecodeError("it is not UTF-8", "", 0) from error
        except RecursionError as error:
            raise json.JSONDecodeError("it is nested too deeply", "", 0) from error
        except msgspec.DecodeError as error:
            raise json.JSONDecodeError(str(error), "", 0) from error


def _read(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        _refuse_by_place(body)
        raise


def _refuse_by_place(body: bytes) -> None:
    """Raise InvalidRequestError for a value that only other parsers read. A long body is not read twice."""
    if len(body) >= LARGE:
        return
    try:
        text = body.decode()
        value = json.loads(text)
    except (ValueError, RecursionError):
        return
    check_json(value, text)


class LargeBodies:
    """Whose turn it is; belongs to one event loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def turn(self, size: int) -> None:
        """Wait until a body of so many bytes may be read. All that its task does before it waits again counts as reading."""
        if size < LARGE:
            return
        await self._turn.acquire()
        asyncio.get_running_loop().call_soon(self._over, time.perf_counter())

    def _over(self, began: float) -> None:
        """The reading task waits for something."""
        asyncio.get_running_loop().call_later(time.perf_counter() - began, self._turn.release)
