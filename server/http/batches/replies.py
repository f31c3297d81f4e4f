"""What clients of batches are answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from typing_extensions import TypedDict

from server.batches.records import WINDOW, Batch, BatchStatus, Problem, Spent


class ProblemReply(TypedDict):
    """What is wrong with an input file; `line` counts from 1."""

    code: str
    message: str
    line: int | None
    param: str | None


class ProblemsReply(TypedDict):
    """Why a batch failed."""

    object: Literal["list"]
    data: list[ProblemReply]


class CountsReply(TypedDict):
    """Lines of a batch: all, those with a reply, those with an error."""

    total: int
    completed: int
    failed: int


class CachedReply(TypedDict):
    """More about the input's tokens."""

    cached_tokens: int


class ReasoningReply(TypedDict):
    """More about the output's tokens."""

    reasoning_tokens: int


class BatchUsageReply(TypedDict):
    """Tokens of all replies together."""

    input_tokens: int
    input_tokens_details: CachedReply
    output_tokens: int
    output_tokens_details: ReasoningReply
    total_tokens: int


class BatchReply(TypedDict):
    """One batch. Times are Unix times in seconds, null for what has not happened."""

    id: str
    object: Literal["batch"]
    endpoint: str
    model: str
    errors: ProblemsReply | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: CountsReply
    usage: BatchUsageReply
    metadata: Mapping[str, str] | None


class BatchListReply(TypedDict):
    """A page of batches; `after` with the last id asks for the next."""

    object: Literal["list"]
    data: list[BatchReply]
    first_id: str | None
    last_id: str | None
    has_more: bool


def batch_reply(batch: Batch) -> BatchReply:
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.wanted.endpoint,
        "model": batch.wanted.model,
        "errors": _problems(batch.problems) if batch.status is BatchStatus.FAILED else None,
        "input_file_id": batch.wanted.input_file_id,
        "completion_window": WINDOW,
        "status": batch.status.value,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": batch.created_at,
        "in_progress_at": batch.in_progress_at,
        "expires_at": batch.expires_at,
        "finalizing_at": batch.finalizing_at,
        "completed_at": batch.completed_at,
        "failed_at": batch.failed_at,
        "expired_at": batch.expired_at,
        "cancelling_at": batch.cancelling_at,
        "cancelled_at": batch.cancelled_at,
        "request_counts": {
            "total": batch.counts.total,
            "completed": batch.counts.completed,
            "failed": batch.counts.failed,
        },
        "usage": _usage(batch.spent),
        "metadata": batch.wanted.metadata,
    }


def batch_list_reply(batches: Sequence[Batch], has_more: bool) -> BatchListReply:
    return {
        "object": "list",
        "data": [batch_reply(batch) for batch in batches],
        "first_id": batches[0].id if batches else None,
        "last_id": batches[-1].id if batches else None,
        "has_more": has_more,
    }


def _problems(problems: Sequence[Problem]) -> ProblemsReply:
    data: list[ProblemReply] = [
        {"code": one.code, "message": one.message, "line": one.line, "param": one.param} for one in problems
    ]
    return {"object": "list", "data": data}


def _usage(spent: Spent) -> BatchUsageReply:
    return {
        "input_tokens": spent.input_tokens,
        "input_tokens_details": {"cached_tokens": spent.cached_tokens},
        "output_tokens": spent.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": spent.input_tokens + spent.output_tokens,
    }
