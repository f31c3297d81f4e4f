"""Bodies of errors: OpenAI's shape, Anthropic's under /v1/messages, KServe's under /v2."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from jaxserve.errors import JaxserveError
from server.errors import OUTCOMES, ErrorBody, ErrorDetail, http_body

_ANTHROPIC_PATH = "/v1/messages"
_KSERVE_PATH = "/v2"
_THREAD = "thread"
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


class ThreadRefusal(TypedDict):
    """What Anthropic's SDK acts on: without threads its tool runner sends the whole conversation with each request."""

    error_code: Literal["thread_unsupported_request"]
    unsupported: list[str]


class AnthropicErrorDetail(TypedDict):
    """What went wrong, in Anthropic's words."""

    type: str
    message: str
    details: NotRequired[ThreadRefusal]


class AnthropicErrorBody(TypedDict):
    """Body of every error under /v1/messages, and of an error event in its streams."""

    type: Literal["error"]
    error: AnthropicErrorDetail


class KserveErrorBody(TypedDict):
    """Body of every error under /v2: the protocol's message, and what our errors say besides."""

    error: str
    code: str | None
    param: str | None


AnyErrorBody = ErrorBody | AnthropicErrorBody | KserveErrorBody


def body_of(error: JaxserveError, path: str) -> AnyErrorBody:
    return shaped(http_body(error)["error"], OUTCOMES[error.code].http, path)


def speaks_anthropic(path: str) -> bool:
    return path == _ANTHROPIC_PATH or path.startswith(_ANTHROPIC_PATH + "/")


def shaped(detail: ErrorDetail, status: int, path: str) -> AnyErrorBody:
    """An error that may have no code of its own, as clients of `path` expect it."""
    if path == _KSERVE_PATH or path.startswith(_KSERVE_PATH + "/"):
        return {"error": detail["message"], "code": detail["code"], "param": detail["param"]}
    if not speaks_anthropic(path):
        return {"error": detail}
    kind = _ANTHROPIC_KINDS.get(status, "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "api_error")
    error: AnthropicErrorDetail = {"type": kind, "message": detail["message"]}
    if detail["param"] == _THREAD:
        error["details"] = {"error_code": "thread_unsupported_request", "unsupported": [_THREAD]}
    return {"type": "error", "error": error}
