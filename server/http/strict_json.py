"""Bodies read as RFC 8259 says: UTF-8, no NaN, no half of a surrogate pair, bounded depth."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.routing import APIRoute

from jaxserve.errors import InvalidRequestError

# Reading values takes the server's one thread for all: as many as take it a few hundredths of a second. A member of an object
# takes as long as some values of a list.
MAX_VALUES = 524_288
_A_MEMBER = 3


class StrictJsonRoute(APIRoute):
    """A route that reads its body with msgspec: stricter than the standard library's parser, and faster."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The framework's handler, given a stricter request."""
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
            return await handle(strictly)

        return strict


class _StrictRequest(Request):
    async def json(self) -> Any:
        """The body's value. Raises JSONDecodeError, which the framework expects, for whatever is wrong with it."""
        body = await self.body()
        await self.app.state.large_bodies.turn(len(body))
        try:
            return msgspec.json.decode(body)
        except UnicodeDecodeError as error:
            raise json.JSONDecodeError("it is not UTF-8", "", 0) from error
        except RecursionError as error:
            raise json.JSONDecodeError("it is nested too deeply", "", 0) from error
        except msgspec.DecodeError as error:
            raise json.JSONDecodeError(str(error), "", 0) from error
