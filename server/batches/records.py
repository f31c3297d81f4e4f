"""What is known of a file and of a batch, and how a batch may change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final

WINDOW: Final = "24h"
WINDOW_SECONDS = 24 * 3600


class Purpose(StrEnum):
    BATCH = "batch"
    BATCH_OUTPUT = "batch_output"


class BatchStatus(StrEnum):
    """Where a batch stands, in OpenAI's words."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


# From a status, those that may follow it. What has none is final.
FOLLOWING: Mapping[BatchStatus, frozenset[BatchStatus]] = MappingProxyType(
    {
        BatchStatus.VALIDATING: frozenset(
            {BatchStatus.IN_PROGRESS, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLING}
        ),
        BatchStatus.IN_PROGRESS: frozenset(
            {BatchStatus.FINALIZING, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLING}
        ),
        BatchStatus.FINALIZING: frozenset({BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.FAILED}),
        BatchStatus.CANCELLING: frozenset({BatchStatus.CANCELLED}),
        BatchStatus.FAILED: frozenset(),
        BatchStatus.COMPLETED: frozenset(),
        BatchStatus.EXPIRED: frozenset(),
        BatchStatus.CANCELLED: frozenset(),
    }
)
FINAL = frozenset(status for status, following in FOLLOWING.items() if not following)


def before(status: BatchStatus) -> tuple[BatchStatus, ...]:
    """The statuses that `status` may follow."""
    return tuple(earlier for earlier, following in FOLLOWING.items() if status in following)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file.

    Attributes:
        id: "file-...", sorts by time of creation.
        owner: the tenant, "" for nobody's.
        filename: as the client called it.
        created_at, expires_at: Unix time in seconds.
    """

    id: str
    owner: str
    purpose: Purpose
    filename: str
    bytes: int
    created_at: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Lines of a batch: all, those with a reply, those with an error."""

    total: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens that the replies of a batch took; cached ones are input too."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with an input file, as a batch that failed tells it.

    Attributes:
        code: stable, for programs.
        line: of the file, from 1; None for the whole.
    """

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """What a client asks for.

    Attributes:
        output_lifetime: seconds from their creation after which its output files expire; None for the store's default.
        key_id: the API key's name in the usage log.
    """

    endpoint: str
    input_file_id: str
    model: str
    metadata: Mapping[str, str] | None = None
    output_lifetime: int | None = None
    key_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch. Times are Unix times in seconds, None for what has not happened.

    Attributes:
        id: "batch_...", sorts by time of creation.
        owner: the tenant, "" for nobody's.
        counts, spent: kept up to date while it runs.
        output_file_id, error_file_id: files of its replies and of its errors, None where there are none.
        expires_at: when the completion window ends.
    """

    id: str
    owner: str
    wanted: NewBatch
    status: BatchStatus
    created_at: int
    expires_at: int
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    counts: Counts = field(default_factory=Counts)
    spent: Spent = field(default_factory=Spent)
    problems: tuple[Problem, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None


@dataclass(frozen=True, slots=True)
class Results:
    """What a batch ends with.

    Attributes:
        counts, spent: of the whole batch.
        output, errors: complete files in the state directory, synced; None or empty for none. They are linked, not copied, and
            must not be written any more; whoever made them removes them.
    """

    counts: Counts
    spent: Spent
    output: Path | None = None
    errors: Path | None = None
