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
from jaxserve.untrusted import refused
from server.json_values import check_num_values, read_value

LARGE = 64 * 1024  # bytes: smaller ones take a few milliseconds at most


class StrictJsonRoute(APIRoute):
    """A route that reads its body with msgspec: stricter than the standard library's parser, and faster."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            strictly = _StrictRequest(request.scope, request.receive)
            body = await strictly.body()
            check_num_values(body)
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
            return read_value(body)
        except InvalidRequestError as error:
            self.refusal = error
            raise json.JSONDecodeError(error.message, "", 0) from error
        except UnicodeDecodeError as error:
            raise json.JSONDecodeError("it is not UTF-8", "", 0) from error
        except RecursionError as error:
            raise json.JSONDecodeError("it is nested too deeply", "", 0) from error
        except msgspec.DecodeError as error:
            raise json.JSONDecodeError(str(error), "", 0) from error


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
