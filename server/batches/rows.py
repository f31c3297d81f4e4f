"""Records as rows of the database, and back."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from server.batches.records import Batch, BatchStatus, Counts, NewBatch, Problem, Purpose, Spent, StoredFile

_TIMES = (
    "created_at",
    "expires_at",
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)


def insert(connection: sqlite3.Connection, table: str, values: Mapping[str, object]) -> None:
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))


def assignments(values: Mapping[str, object]) -> str:
    """What follows SET in an UPDATE that takes the values in their order."""
    return ", ".join(f"{name} = ?" for name in values)


def row_of_file(record: StoredFile) -> dict[str, object]:
    return {**asdict(record), "purpose": record.purpose.value}


def file_of(row: sqlite3.Row) -> StoredFile:
    return StoredFile(**{**dict(row), "purpose": Purpose(row["purpose"])})


def numbers(counts: Counts, spent: Spent) -> dict[str, object]:
    return {**asdict(counts), **asdict(spent)}


def encoded(value: object) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def row_of_batch(batch: Batch) -> dict[str, object]:
    wanted = batch.wanted
    return {
        "id": batch.id,
        "owner": batch.owner,
        "endpoint": wanted.endpoint,
        "input_file_id": wanted.input_file_id,
        "model": wanted.model,
        "metadata": encoded(wanted.metadata),
        "output_lifetime": wanted.output_lifetime,
        "key_id": wanted.key_id,
        "status": batch.status.value,
        **{name: getattr(batch, name) for name in _TIMES},
        **numbers(batch.counts, batch.spent),
        "problems": encoded(batch.problems),
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
    }


def batch_of(row: sqlite3.Row) -> Batch:
    return Batch(
        id=row["id"],
        owner=row["owner"],
        wanted=NewBatch(
            endpoint=row["endpoint"],
            input_file_id=row["input_file_id"],
            model=row["model"],
            metadata=_decoded(row["metadata"]),
            output_lifetime=row["output_lifetime"],
            key_id=row["key_id"],
        ),
        status=BatchStatus(row["status"]),
        **{name: row[name] for name in _TIMES},
        counts=Counts(row["total"], row["completed"], row["failed"]),
        spent=Spent(row["input_tokens"], row["cached_tokens"], row["output_tokens"]),
        problems=_problems(row["problems"]),
        output_file_id=row["output_file_id"],
        error_file_id=row["error_file_id"],
    )


def _problems(text: str) -> tuple[Problem, ...]:
    found: Sequence[Problem] = msgspec.json.decode(text, type=list[Problem])
    return tuple(found)


def _decoded(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
