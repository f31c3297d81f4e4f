"""Exceptions of jaxserve. Each has a stable code; `server` maps codes to HTTP and gRPC statuses in one table."""

from __future__ import annotations

from enum import StrEnum


class ErrorCode(StrEnum):
    """Stable, machine-readable error codes, part of the public API."""

    INVALID_REQUEST = "invalid_request"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    MODEL_NOT_FOUND = "model_not_found"
    QUEUE_FULL = "queue_full"
    OVERLOADED = "overloaded"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    DRAINING = "draining"
    CANCELLED = "cancelled"
    SLOW_READER = "slow_reader"
    ENGINE_DEAD = "engine_dead"
    INVALID_API_KEY = "invalid_api_key"
    PERMISSION_DENIED = "permission_denied"
    RATE_LIMITED = "rate_limit_exceeded"
    BUDGET_SPENT = "insufficient_quota"
    REQUEST_TOO_LARGE = "request_too_large"
    IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    QUOTA_EXCEEDED = "quota_exceeded"
    STORAGE_FULL = "storage_full"
    INTERNAL = "internal_error"
    ENGINE_KILLED = "engine_killed_by_request"
    CONFIG = "invalid_config"
    CHECKPOINT = "invalid_checkpoint"
    UNSUPPORTED_MODEL = "unsupported_model"


_LONGEST_MESSAGE = 4000  # characters


class JaxserveError(Exception):
    """Base of every error raised on purpose.

    Attributes:
        code: the stable code.
        message: one sentence for people; names the field and the limit.
        param: the request or config field at fault, if one is.
        retry_after: seconds after which the same request may succeed, if it may.
    """

    code = ErrorCode.INTERNAL

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        self.message = printable(message)  # an error reaches clients, logs and other processes: each of them needs valid Unicode
        self.param = None if param is None else printable(param)
        super().__init__(self.message)
        self.retry_after = retry_after

    def copy(self) -> JaxserveError:
        """The same error without a traceback: raised in several places, one object would gather those of all."""
        return type(self)(self.message, param=self.param, retry_after=self.retry_after)


class InvalidRequestError(JaxserveError, ValueError):
    """A request field is missing, of the wrong type, or out of its range."""

    code = ErrorCode.INVALID_REQUEST


class ContextLengthError(InvalidRequestError):
    """Prompt plus requested output cannot fit the model's context or the whole KV cache."""

    code = ErrorCode.CONTEXT_LENGTH_EXCEEDED


class ModelNotFoundError(JaxserveError):
    """The request names a model that is not served here."""

    code = ErrorCode.MODEL_NOT_FOUND


class RefusedError(JaxserveError):
    """The engine does not run this request now; `retry_after` says when it may."""


class QueueFullError(RefusedError):
    """The bounded waiting queue is full."""

    code = ErrorCode.QUEUE_FULL


class OverloadedError(RefusedError):
    """The queue is so long that the request would not start in time."""

    code = ErrorCode.OVERLOADED


class DeadlineError(RefusedError):
    """The request did not start, or did not end, in the time it was given."""

    code = ErrorCode.DEADLINE_EXCEEDED


class DrainingError(JaxserveError):
    """The engine finishes what runs and accepts nothing new."""

    code = ErrorCode.DRAINING


class CancelledRequestError(JaxserveError):
    """The request was aborted by its client."""

    code = ErrorCode.CANCELLED


class SlowReaderError(JaxserveError):
    """The client did not read what was made for it, and its request was ended."""

    code = ErrorCode.SLOW_READER


class EngineDeadError(JaxserveError):
    """The engine loop ended by an unexpected exception; nothing can be served."""

    code = ErrorCode.ENGINE_DEAD


class InternalError(JaxserveError):
    """This request failed inside the engine; others go on."""

    code = ErrorCode.INTERNAL


class EngineKilledError(JaxserveError):
    """The engine process ended while this request ran in it alone; sending it again would end another one."""

    code = ErrorCode.ENGINE_KILLED


class AuthenticationError(JaxserveError):
    """The request carries no API key, or one that is not known here or has expired."""

    code = ErrorCode.INVALID_API_KEY


class PermissionDeniedError(JaxserveError):
    """The API key is good, but not for this."""

    code = ErrorCode.PERMISSION_DENIED


class RateLimitError(RefusedError):
    """The tenant has used up what it may take for now; `retry_after` is when there is enough again."""

    code = ErrorCode.RATE_LIMITED


class BudgetError(RefusedError):
    """The tenant has spent its tokens of the day; `retry_after` is when the next day begins."""

    code = ErrorCode.BUDGET_SPENT


class RequestTooLargeError(JaxserveError):
    """The body is longer than the server reads."""

    code = ErrorCode.REQUEST_TOO_LARGE


class IdempotencyError(JaxserveError):
    """An idempotency key was used before with another request."""

    code = ErrorCode.IDEMPOTENCY_KEY_REUSED


class NotFoundError(JaxserveError):
    """The caller has nothing of that name."""

    code = ErrorCode.NOT_FOUND


class ConflictError(JaxserveError):
    """What is there is not in a state that allows this."""

    code = ErrorCode.CONFLICT


class QuotaError(JaxserveError):
    """The tenant has as much stored, or as many batches unfinished, as it may have."""

    code = ErrorCode.QUOTA_EXCEEDED


class StorageFullError(JaxserveError):
    """The disk has no room for what was to be stored."""

    code = ErrorCode.STORAGE_FULL


class ConfigError(JaxserveError, ValueError):
    """An impossible or contradictory engine configuration."""

    code = ErrorCode.CONFIG


class CheckpointError(JaxserveError):
    """A checkpoint is missing, damaged, or does not fit the model."""

    code = ErrorCode.CHECKPOINT


class UnsupportedModelError(CheckpointError):
    """An architecture or a config value that jaxserve does not implement."""

    code = ErrorCode.UNSUPPORTED_MODEL


_MAX_BRIEF = 300  # characters of an exception that a message repeats


def printable(text: str, longest: int = _LONGEST_MESSAGE) -> str:
    """The text with lone surrogates escaped, so that it can be encoded, and cut to `longest` characters."""
    escaped = text[: longest + 1].encode(errors="backslashreplace").decode()
    return escaped if len(escaped) <= longest else escaped[: longest - 3] + "..."


def brief(error: BaseException) -> str:
    """An exception in one short line; never raises, although `repr` of its arguments may."""
    try:
        text = repr(error)
    except Exception:
        return type(error).__name__
    return printable(text, _MAX_BRIEF)


def is_containable(error: BaseException) -> bool:
    """Whether an error belongs to the work in progress, not to the process: a panic of a Rust extension does, too."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def contained(error: BaseException, phase: str) -> JaxserveError:
    """The error that one request ends with after `error` was raised in a phase of its processing, such as "sampling"."""
    if isinstance(error, JaxserveError):
        return error.copy()
    return InternalError(f"the request failed in {phase}: {brief(error)}")
