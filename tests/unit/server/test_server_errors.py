"""The error table: complete, and the same answer on both surfaces."""

import math

import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from jaxserve.errors import (
    AuthenticationError,
    BudgetError,
    ConflictError,
    DeadlineError,
    DrainingError,
    EngineDeadError,
    ErrorCode,
    IdempotencyError,
    InvalidRequestError,
    JaxserveError,
    ModelNotFoundError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    QueueFullError,
    QuotaError,
    RateLimitError,
    RequestTooLargeError,
    SlowReaderError,
    StorageFullError,
)
from server.errors import DEFAULT_RETRY_SECONDS, OUTCOMES, grpc_status, http_body, http_headers


def details(error: JaxserveError) -> status_pb2.Status:
    (_, value), *_ = grpc_status(error).trailing_metadata
    return status_pb2.Status.FromString(value)


def test_every_code_has_an_outcome() -> None:
    assert set(OUTCOMES) == set(ErrorCode)


@pytest.mark.parametrize(
    ("error", "http", "grpc"),
    [
        (InvalidRequestError("x"), 400, StatusCode.INVALID_ARGUMENT),
        (ModelNotFoundError("x"), 404, StatusCode.NOT_FOUND),
        (QueueFullError("x"), 429, StatusCode.RESOURCE_EXHAUSTED),
        (OverloadedError("x"), 503, StatusCode.UNAVAILABLE),
        (DeadlineError("x"), 504, StatusCode.DEADLINE_EXCEEDED),
        (DrainingError("x"), 503, StatusCode.UNAVAILABLE),
        (EngineDeadError("x"), 503, StatusCode.UNAVAILABLE),
        (AuthenticationError("x"), 401, StatusCode.UNAUTHENTICATED),
        (PermissionDeniedError("x"), 403, StatusCode.PERMISSION_DENIED),
        (RateLimitError("x"), 429, StatusCode.RESOURCE_EXHAUSTED),
        (BudgetError("x"), 429, StatusCode.RESOURCE_EXHAUSTED),
        (SlowReaderError("x"), 408, StatusCode.RESOURCE_EXHAUSTED),
        (RequestTooLargeError("x"), 413, StatusCode.RESOURCE_EXHAUSTED),
        (IdempotencyError("x"), 422, StatusCode.ALREADY_EXISTS),
        (NotFoundError("x"), 404, StatusCode.NOT_FOUND),
        (ConflictError("x"), 409, StatusCode.FAILED_PRECONDITION),
        (QuotaError("x"), 403, StatusCode.RESOURCE_EXHAUSTED),
        (StorageFullError("x"), 507, StatusCode.RESOURCE_EXHAUSTED),
    ],
)
def test_statuses(error: JaxserveError, http: int, grpc: StatusCode) -> None:
    assert OUTCOMES[error.code].http == http
    assert grpc_status(error).code == grpc


def test_http_body_has_the_four_keys_of_openai() -> None:
    body = http_body(InvalidRequestError("top_p must be in (0, 1]", param="top_p"))
    assert body == {
        "error": {
            "message": "top_p must be in (0, 1]",
            "type": "invalid_request_error",
            "param": "top_p",
            "code": "invalid_request",
        }
    }


@pytest.mark.parametrize(
    ("error", "least", "most"),
    [
        (QueueFullError("x", retry_after=1.2), 2, 3),
        (OverloadedError("x", retry_after=40.0), 40, 50),
        (DeadlineError("x"), DEFAULT_RETRY_SECONDS, DEFAULT_RETRY_SECONDS * 1.25),
        (DrainingError("x"), DEFAULT_RETRY_SECONDS, DEFAULT_RETRY_SECONDS * 1.25),
    ],
)
def test_retry_after_is_whole_seconds_never_early_and_spread(error: JaxserveError, least: float, most: float) -> None:
    drawn = {int(http_headers(error)["Retry-After"]) for _ in range(200)}
    assert least <= min(drawn) < max(drawn) <= math.ceil(most)


def test_what_cannot_be_helped_is_not_to_be_tried_again() -> None:
    assert http_headers(InvalidRequestError("x")) == {}
    assert http_headers(AuthenticationError("x")) == {"WWW-Authenticate": "Bearer"}


def test_grpc_details_name_the_field() -> None:
    status = details(InvalidRequestError("top_p must be in (0, 1]", param="sampling.top_p"))
    violations = error_details_pb2.BadRequest()
    assert status.details[0].Unpack(violations)
    assert [violation.field for violation in violations.field_violations] == ["sampling.top_p"]


def test_grpc_details_say_when_to_retry() -> None:
    retry = error_details_pb2.RetryInfo()
    assert details(QueueFullError("x", retry_after=1.5)).details[0].Unpack(retry)
    assert 1500 <= retry.retry_delay.ToMilliseconds() <= 2500


def test_grpc_details_name_the_code_and_the_request() -> None:
    found = error_details_pb2.ErrorInfo()
    assert any(detail.Unpack(found) for detail in details(QueueFullError("x")).details)
    assert (found.reason, found.domain) == ("QUEUE_FULL", "jaxserve")
    assert not any(detail.Is(error_details_pb2.RequestInfo.DESCRIPTOR) for detail in details(QueueFullError("x")).details)
    (_, value), *_ = grpc_status(QueueFullError("x"), "mine").trailing_metadata
    request = error_details_pb2.RequestInfo()
    assert status_pb2.Status.FromString(value).details[-1].Unpack(request)
    assert request.request_id == "mine"


def test_a_status_fits_the_headers_that_clients_take() -> None:
    assert grpc_status(InvalidRequestError("é" * 500)).details == "é" * 500
    assert grpc_status(InvalidRequestError("é" * 100_000, param="model")).details == "é" * 500 + "..."
