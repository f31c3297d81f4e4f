"""The one table from error codes to what clients of either server see."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from typing_extensions import TypedDict

from jaxserve.errors import ErrorCode, JaxserveError


@dataclass(frozen=True, slots=True)
class ErrorStatus:
    """How one error code looks from outside.

    Attributes:
        kind: `type` in OpenAI's error body.
        retryable: whether the same request may succeed later.
    """

    http: int
    kind: str
    grpc: grpc.StatusCode
    retryable: bool


_STATUS = grpc.StatusCode
_AT_START = ErrorStatus(500, "server_error", _STATUS.FAILED_PRECONDITION, retryable=False)

OUTCOMES: Mapping[ErrorCode, ErrorStatus] = MappingProxyType(
    {
        ErrorCode.INVALID_REQUEST: ErrorStatus(400, "invalid_request_error", _STATUS.INVALID_ARGUMENT, retryable=False),
        ErrorCode.CONTEXT_LENGTH_EXCEEDED: ErrorStatus(400, "invalid_request_error", _STATUS.INVALID_ARGUMENT, retryable=False),
        ErrorCode.MODEL_NOT_FOUND: ErrorStatus(404, "invalid_request_error", _STATUS.NOT_FOUND, retryable=False),
        ErrorCode.QUEUE_FULL: ErrorStatus(429, "rate_limit_error", _STATUS.RESOURCE_EXHAUSTED, retryable=True),
        ErrorCode.OVERLOADED: ErrorStatus(503, "service_unavailable_error", _STATUS.UNAVAILABLE, retryable=True),
        ErrorCode.DEADLINE_EXCEEDED: ErrorStatus(504, "timeout_error", _STATUS.DEADLINE_EXCEEDED, retryable=True),
        ErrorCode.DRAINING: ErrorStatus(503, "service_unavailable_error", _STATUS.UNAVAILABLE, retryable=True),
        ErrorCode.CANCELLED: ErrorStatus(499, "cancelled_error", _STATUS.CANCELLED, retryable=False),
        ErrorCode.SLOW_READER: ErrorStatus(408, "timeout_error", _STATUS.RESOURCE_EXHAUSTED, retryable=False),
        ErrorCode.ENGINE_DEAD: ErrorStatus(503, "service_unavailable_error", _STATUS.UNAVAILABLE, retryable=True),
        ErrorCode.INVALID_API_KEY: ErrorStatus(401, "invalid_request_error", _STATUS.UNAUTHENTICATED, retryable=False),
        ErrorCode.PERMISSION_DENIED: ErrorStatus(403, "permission_error", _STATUS.PERMISSION_DENIED, retryable=False),
        ErrorCode.RATE_LIMITED: ErrorStatus(429, "rate_limit_error", _STATUS.RESOURCE_EXHAUSTED, retryable=True),
        ErrorCode.BUDGET_SPENT: ErrorStatus(429, "insufficient_quota", _STATUS.RESOURCE_EXHAUSTED, retryable=True),
        ErrorCode.REQUEST_TOO_LARGE: ErrorStatus(413, "invalid_request_error", _STATUS.RESOURCE_EXHAUSTED, retryable=False),
        ErrorCode.IDEMPOTENCY_KEY_REUSED: ErrorStatus(422, "invalid_request_error", _STATUS.ALREADY_EXISTS, retryable=False),
        ErrorCode.NOT_FOUND: ErrorStatus(404, "invalid_request_error", _STATUS.NOT_FOUND, retryable=False),
        ErrorCode.CONFLICT: ErrorStatus(409, "invalid_request_error", _STATUS.FAILED_PRECONDITION, retryable=False),
        ErrorCode.QUOTA_EXCEEDED: ErrorStatus(403, "insufficient_quota", _STATUS.RESOURCE_EXHAUSTED, retryable=False),
        ErrorCode.STORAGE_FULL: ErrorStatus(507, "server_error", _STATUS.RESOURCE_EXHAUSTED, retryable=False),
        ErrorCode.INTERNAL: ErrorStatus(500, "server_error", _STATUS.INTERNAL, retryable=False),
        ErrorCode.ENGINE_KILLED: ErrorStatus(500, "server_error", _STATUS.INTERNAL, retryable=False),
        ErrorCode.CONFIG: _AT_START,
        ErrorCode.CHECKPOINT: _AT_START,
        ErrorCode.UNSUPPORTED_MODEL: _AT_START,
    }
)

# For retryable errors that do not know when: soon enough for a person, late enough for a busy server.
DEFAULT_RETRY_SECONDS = 5.0

# Clients that were refused together are told to come back spread over this share of the time, and over a second at least.
JITTER_SHARE = 0.25
JITTER_SECONDS = 1.0
_JITTER_STEPS = 1000

_NOT_AGAIN = frozenset({ErrorCode.CONFLICT, ErrorCode.STORAGE_FULL})

_DOMAIN = "jaxserve"  # of the reasons in google.rpc.ErrorInfo
_MAX_MESSAGE_BYTES = 1000  # a status travels in headers, of which clients take 8 KiB, and says its message up to three times


class ErrorDetail(TypedDict):
    """What went wrong, in OpenAI's shape."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """Body of every HTTP error, and of an error event in a stream."""

    error: ErrorDetail


def retry_after(error: JaxserveError) -> float | None:
    """Seconds after which to try again, never too early and drawn anew at each call; None if that would not help."""
    seconds = error.retry_after
    if seconds is None:
        if not OUTCOMES[error.code].retryable:
            return None
        seconds = DEFAULT_RETRY_SECONDS
    spread = max(JITTER_SECONDS, JITTER_SHARE * seconds)
    return seconds + spread * secrets.randbelow(_JITTER_STEPS) / _JITTER_STEPS


def http_body(error: JaxserveError) -> ErrorBody:
    """The error in OpenAI's shape."""
    kind = OUTCOMES[error.code].kind
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code.value}}


def http_headers(error: JaxserveError) -> dict[str, str]:
    """Retry-After, in whole seconds and never too early, where trying again may help; how to identify oneself after a 401.

    Where SDKs would try again for the status alone, and in vain, they are told not to.
    """
    if OUTCOMES[error.code].http == HTTPStatus.UNAUTHORIZED:
        return {"WWW-Authenticate": "Bearer"}
    if error.code in _NOT_AGAIN:
        return {"x-should-retry": "false"}
    seconds = retry_after(error)
    return {} if seconds is None else {"Retry-After": str(math.ceil(seconds))}


def grpc_status(error: JaxserveError, request_id: str = "") -> grpc.Status:
    """The error as a gRPC status with its details: BadRequest and RetryInfo where they apply, ErrorInfo, RequestInfo if known."""
    details: list[AnyMessage] = []
    message = _short(error.message)
    if error.param is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.param, description=message, reason=error.code.value.upper()
        )
        details.append(_packed(error_details_pb2.BadRequest(field_violations=[violation])))
    seconds = retry_after(error)
    if seconds is not None:
        info = error_details_pb2.RetryInfo()
        info.retry_delay.FromMilliseconds(math.ceil(seconds * 1000))
        details.append(_packed(info))
    details.append(_packed(error_details_pb2.ErrorInfo(reason=error.code.value.upper(), domain=_DOMAIN)))
    if request_id:
        details.append(_packed(error_details_pb2.RequestInfo(request_id=request_id)))
    code: int = OUTCOMES[error.code].grpc.value[0]
    status: grpc.Status = rpc_status.to_status(status_pb2.Status(code=code, message=message, details=details))
    return status


def _short(message: str) -> str:
    """The message, cut where it would not fit the headers."""
    encoded = message.encode()
    return message if len(encoded) <= _MAX_MESSAGE_BYTES else encoded[:_MAX_MESSAGE_BYTES].decode(errors="ignore") + "..."


def _packed(detail: Message) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(detail)
    return packed
