"""Every failure becomes the error body that clients of its path expect, with the status that the table gives it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from jaxserve.errors import InvalidRequestError, JaxserveError
from server.errors import OUTCOMES, ErrorDetail, http_headers
from server.http.error_bodies import body_of, shaped

_encode = msgspec.json.Encoder().encode

PIECE_BYTES = 256 * 1024  # of a long answer, on its way at a time

# Prefixes of paths; what follows is nothing or begins with a slash.
_NOT_YET = (
    "/v1/uploads",
    "/v1/messages/batches",
    "/sleep",
    "/wake_up",
    "/pause",
    "/resume",
)
_NO_TEXT = ("/v1/audio", "/v1/images", "/v1/videos", "/v1/realtime", "/v1/moderations", "/v1/fine_tuning")
_STORED = ("/v1/responses", "/v1/conversations", "/v1/chat/completions", "/v1/assistants", "/v1/threads", "/v1/vector_stores")


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(_encode(content), status, headers, media_type="application/json")


def pieces_response(head: Mapping[str, Any], choices: Sequence[bytes], tail: Mapping[str, bytes]) -> Response:
    """A JSON answer of which parts are written already: `head`, which is not empty, then `choices`, then `tail` by name."""
    pieces = [_encode(head)[:-1] + b',"choices":[']
    for place, choice in enumerate(choices):
        pieces += [b",", choice] if place else [choice]
    pieces.append(b"]")
    for name, value in tail.items():
        pieces += [b"," + _encode(name) + b":", value]
    pieces.append(b"}")
    short = sum(map(len, pieces)) <= PIECE_BYTES
    return Response(b"".join(pieces), media_type="application/json") if short else _Pieces(pieces)


class _Pieces(Response):
    """A long answer goes out piece by piece, as fast as it is read; nothing of it is copied into one."""

    media_type = "application/json"

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__(headers={"content-length": str(sum(map(len, pieces)))})
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._pieces:
            for start in range(0, len(piece), PIECE_BYTES):
                part = memoryview(piece)[start : start + PIECE_BYTES]
                await send({"type": "http.response.body", "body": bytes(part), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def error_response(error: JaxserveError, path: str) -> Response:
    return json_response(body_of(error, path), OUTCOMES[error.code].http, http_headers(error))


def install(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Let the app, which has these routes, answer every failure in this shape."""
    app.add_exception_handler(JaxserveError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_body)
    app.add_exception_handler(HTTPException, partial(_on_http_error, [route for route in routes if isinstance(route, Route)]))


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, JaxserveError)
    return error_response(error, _path_of(request))


async def _on_invalid_body(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(from_validation(error.errors(), error.body), _path_of(request))


async def _on_http_error(routes: Sequence[Route], request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status, path = HTTPStatus(error.status_code), _path_of(request)
    message = {
        HTTPStatus.NOT_FOUND: explained(path),
        HTTPStatus.METHOD_NOT_ALLOWED: f"{path} does not take {request.method}",
    }.get(status, error.detail)
    detail: ErrorDetail = {"message": message, "type": "invalid_request_error", "param": None, "code": status.name.lower()}
    headers = dict(error.headers or {})
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(sorted(methods_at(routes, path)))  # the framework looks at one route only
    return json_response(shaped(detail, status, path), status, headers)


def methods_at(routes: Sequence[Route], path: str) -> set[str]:
    methods = {method for route in routes if route.path_regex.match(path) for method in route.methods or ()}
    return methods | ({"HEAD"} if "GET" in methods else set())


def _path_of(request: Request) -> str:
    """As it was sent: `request.url` is put together from headers too, which may hold anything."""
    path: str = request.scope["path"]
    return path


def from_validation(errors: Iterable[Any], body: Any) -> InvalidRequestError:
    """Pydantic's first complaint, as an error that names the field."""
    first = next(iter(errors))
    if first["type"] == "json_invalid":
        return InvalidRequestError(f"the body is not valid JSON: {first['ctx']['error']}")
    where, *location = first["loc"]
    path = _path(location, body, missing=first["type"] == "missing") if where == "body" else ".".join(map(str, location))
    context = first.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, InvalidRequestError):
        prefix = f"{path}." if path else ""
        return InvalidRequestError(f"{prefix}{cause.message}", param=f"{prefix}{cause.param}")
    named = context.get("param")
    if named is not None:
        path = f"{path}.{named}" if path else named
    if not path and isinstance(body, dict) and location:
        path = str(location[-1])  # a field that the body has by an older name
    if not path:
        return InvalidRequestError("the body must be a JSON object, sent as content-type application/json")
    reason = first["msg"].replace("Input should be", "must be").replace("Field required", "is required")
    if not reason.startswith(("must", "is", "cannot")):
        reason = f"is not valid: {reason}"
    return InvalidRequestError(f"{path} {reason}", param=path)


def _path(location: Sequence[str | int], body: Any, *, missing: bool) -> str:
    """The field's name as a client writes it: pydantic's location without the union members it tried."""
    path = ""
    for position, step in enumerate(location):
        absent = missing and position == len(location) - 1
        if isinstance(step, int) and isinstance(body, list):
            path += f"[{step}]"
            body = body[step] if step < len(body) else None
        elif isinstance(body, dict) and (step in body or absent):
            path += f".{step}" if path else str(step)
            body = body.get(step)
    return path


def explained(path: str) -> str:
    if _under(path, _NOT_YET):
        return f"{path} is not supported by this server yet"
    if _under(path, _NO_TEXT):
        return f"{path} is not supported: this server generates text"
    if _under(path, _STORED):
        return f"{path} is not supported: this server stores nothing"
    return f"there is nothing at {path}"


def _under(path: str, prefixes: tuple[str, ...]) -> bool:
    return any(path == prefix or path.startswith(prefix + "/") for prefix in prefixes)
