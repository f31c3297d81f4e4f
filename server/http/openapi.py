"""The document of the API: what may be answered, with which headers, and nothing that is not so."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from jaxserve.errors import ErrorCode
from server.errors import OUTCOMES, ErrorBody
from server.http.descriptions import describe
from server.http.schemas import fit
from server.models import clients_of

Responses = dict[int | str, dict[str, Any]]

_WHOLE = 2**65  # the longest whole number that a limit is

_AT_START = frozenset({ErrorCode.CONFIG, ErrorCode.CHECKPOINT, ErrorCode.UNSUPPORTED_MODEL})
_OF_FILES = frozenset({ErrorCode.NOT_FOUND, ErrorCode.CONFLICT, ErrorCode.QUOTA_EXCEEDED, ErrorCode.STORAGE_FULL})
GENERATING = tuple(code for code in OUTCOMES if code not in _AT_START | _OF_FILES - {ErrorCode.CONFLICT})
ASKING = (  # what is answered without the engine's queue
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INVALID_API_KEY,
    ErrorCode.PERMISSION_DENIED,
    ErrorCode.MODEL_NOT_FOUND,
    ErrorCode.REQUEST_TOO_LARGE,
    ErrorCode.IDEMPOTENCY_KEY_REUSED,
    ErrorCode.CONFLICT,
    ErrorCode.INTERNAL,
    ErrorCode.DRAINING,
    ErrorCode.ENGINE_DEAD,
)
STORING = (*ASKING, ErrorCode.OVERLOADED, *(code for code in OUTCOMES if code in _OF_FILES - {ErrorCode.CONFLICT}))

_ABOUT = """
Serves one language model. Errors have OpenAI's shape, and Anthropic's under `/v1/messages`; `code` is stable, `param` names the
field at fault. Unknown fields are ignored. Those of other servers that cannot be honoured are refused by name, or told in the
header `x-jaxserve-warning`; the server may be told to drop some, which `x-jaxserve-ignored` tells. Numbers may be sent as texts.

- `Authorization: Bearer KEY` or `x-api-key: KEY`, where the server has keys.
- `X-Request-Id` is told back, or made up; it is for logs. Under `/v1/messages` it is told as `request-id` too.
- `X-Tenant` names the tenant, where the server has no keys.
- `Idempotency-Key`: a POST that is sent again with the same key gets the first answer; not taken with an upload. It goes on for a
  time after its client went away: `Idempotency-Grace` says for how many seconds at most.
- `X-Conversation-Id` with a POST that generates: it goes on for a time after its client went away, its events have numbers, and
  `/v1/streams/ID` goes on from any of them. A later request with the same id ends it. Not together with `Idempotency-Key`.
- Files, batches and streams are the tenant's: what is another's does not exist.
- A slash at the end of a path changes nothing; `/chat/completions`, `/models` and the like are those under `/v1`. What takes GET
  takes HEAD.
- `/v2` speaks the Open Inference Protocol (KServe v2) with Triton's extensions; its documents are those of the protocol.
- `Retry-After` says in seconds when a request that was refused may succeed.
"""

_REQUEST_ID = {"X-Request-Id": {"description": "as it was sent, or made up", "schema": {"type": "string"}}}
_RETRY_AFTER = {"Retry-After": {"description": "seconds", "schema": {"type": "integer", "minimum": 0}}}

_EVENT = {
    "description": "each event",
    "type": "object",
    "properties": {
        "event": {"type": "string", "description": "its kind, where the API names kinds"},
        "data": {"type": "string", "description": "JSON, or [DONE] at the end"},
    },
    "required": ["data"],
}


def failures(codes: Iterable[ErrorCode], body: Any = ErrorBody) -> Responses:
    """What is documented of failures: each status once, with the codes that it stands for."""
    by_status: dict[int, list[ErrorCode]] = {}
    for code in codes:
        by_status.setdefault(OUTCOMES[code].http, []).append(code)
    return {status: _failure(status, by_status[status], body) for status in sorted(by_status)}


def _failure(status: int, codes: list[ErrorCode], body: Any) -> dict[str, Any]:
    may_retry = any(OUTCOMES[code].retryable for code in codes)
    return {
        "model": body,
        "description": ", ".join(codes),
        "headers": {**_REQUEST_ID, **(_RETRY_AFTER if may_retry else {})},
    }


def answer(reply: Any, example: Any, *, streamed: str | None = None) -> Responses:
    """What is documented of success: a reply with an example, and an example of the stream where there may be one."""
    content: dict[str, Any] = {"application/json": {"example": example}}
    if streamed is not None:
        content["text/event-stream"] = {"schema": _EVENT, "example": streamed}
    return {200: {"model": reply, "description": "the answer", "content": content, "headers": _REQUEST_ID}}


def events(description: str, example: str) -> Responses:
    """What is documented of success where there is nothing but a stream."""
    content = {"text/event-stream": {"schema": _EVENT, "example": example}}
    return {200: {"description": description, "content": content, "headers": _REQUEST_ID}}


def install(app: FastAPI) -> None:
    @functools.cache
    def openapi() -> dict[str, Any]:
        return _document(app)

    app.openapi = openapi  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, description=_ABOUT, routes=app.routes)
    schemas: dict[str, Any] = document["components"]["schemas"]
    if not any(client.model.pooler for client in clients_of(app.state.client)):
        _drop_tagged(document, "pooling")
    for path in document["paths"].values():
        for operation in path.values():
            _drop_foreign_422(operation["responses"])
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    fit(document, app.state.client)
    describe(document)
    _write_whole_numbers(document)
    document["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    document["security"] = [{}, {"bearer": []}, {"apiKey": []}]
    return document


def _drop_tagged(document: dict[str, Any], tag: str) -> None:
    """Leave out operations that no served model can do."""
    paths = document["paths"].items()
    document["paths"] = {path: item for path, item in paths if not any(tag in one.get("tags", ()) for one in item.values())}


def _write_whole_numbers(value: Any) -> None:
    """The framework makes floats of limits, which reads badly."""
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        if isinstance(item, dict | list):
            _write_whole_numbers(item)
        elif isinstance(item, float) and item.is_integer() and abs(item) < _WHOLE:
            value[key] = int(item)


def _drop_foreign_422(responses: dict[str, Any]) -> None:
    """The framework adds a status that this server answers in another way."""
    status = str(HTTPStatus.UNPROCESSABLE_ENTITY.value)
    content = responses.get(status, {}).get("content", {})
    if "HTTPValidationError" in str(content):
        del responses[status]
