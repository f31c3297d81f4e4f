"""The error table: complete, and the same answer on both surfaces."""

import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from jaxserve.errors import (
    DeadlineError,
    DrainingError,
    EngineDeadError,
    ErrorCode,
    InvalidRequestError,
    JaxserveError,
    ModelNotFoundError,
    OverloadedError,
    QueueFullError,
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
    ("error", "expected"),
    [
        (InvalidRequestError("x"), None),
        (QueueFullError("x", retry_after=1.2), "2"),
        (OverloadedError("x", retry_after=30.0), "30"),
        (DeadlineError("x"), str(int(DEFAULT_RETRY_SECONDS))),
        (DrainingError("x"), str(int(DEFAULT_RETRY_SECONDS))),
    ],
)
def test_retry_after_is_whole_seconds_and_never_early(error: JaxserveError, expected: str | None) -> None:
    assert http_headers(error).get("Retry-After") == expected


def test_grpc_details_name_the_field() -> None:
    status = details(InvalidRequestError("top_p must be in (0, 1]", param="sampling.top_p"))
    violations = error_details_pb2.BadRequest()
    assert status.details[0].Unpack(violations)
    assert [violation.field for violation in violations.field_violations] == ["sampling.top_p"]


def test_grpc_details_say_when_to_retry() -> None:
    retry = error_details_pb2.RetryInfo()
    assert details(QueueFullError("x", retry_after=1.5)).details[0].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 1500


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
