"""Bodies of errors: OpenAI's shape, and Anthropic's under /v1/messages."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Literal

from typing_extensions import TypedDict

from jaxserve.errors import JaxserveError
from server.errors import OUTCOMES, ErrorBody, ErrorDetail, http_body

_ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_KINDS: Mapping[int, str] = MappingProxyType(
    {
        HTTPStatus.UNAUTHORIZED: "authentication_error",
        HTTPStatus.FORBIDDEN: "permission_error",
        HTTPStatus.NOT_FOUND: "not_found_error",
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
        HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
        HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
        HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
    }
)


class AnthropicErrorDetail(TypedDict):
    """What went wrong, in Anthropic's words."""

    type: str
    message: str


class AnthropicErrorBody(TypedDict):
    """Body of every error under /v1/messages, and of an error event in its streams."""

    type: Literal["error"]
    error: AnthropicErrorDetail


def body_of(error: JaxserveError, path: str) -> ErrorBody | AnthropicErrorBody:
    """The error as clients of `path` expect it."""
    return shaped(http_body(error)["error"], OUTCOMES[error.code].http, path)


def speaks_anthropic(path: str) -> bool:
    """Whether clients of a path are Anthropic's."""
    return path == _ANTHROPIC_PATH or path.startswith(_ANTHROPIC_PATH + "/")


def shaped(detail: ErrorDetail, status: int, path: str) -> ErrorBody | AnthropicErrorBody:
    """An error that may have no code of its own, as clients of `path` expect it."""
    if not speaks_anthropic(path):
        return {"error": detail}
    kind = _ANTHROPIC_KINDS.get(status, "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "api_error")
    return {"type": "error", "error": {"type": kind, "message": detail["message"]}}
