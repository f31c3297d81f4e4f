"""What clients of files are answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from typing_extensions import TypedDict

from server.batches.records import StoredFile


class FileReply(TypedDict):
    """One file. Times are Unix times in seconds."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]


class FileListReply(TypedDict):
    """A page of files; `after` with the last id asks for the next."""

    object: Literal["list"]
    data: list[FileReply]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeletedReply(TypedDict):
    """A file that is gone."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


def file_reply(record: StoredFile) -> FileReply:
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.bytes,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "filename": record.filename,
        "purpose": record.purpose.value,
        "status": "processed",
    }


def file_list_reply(records: Sequence[StoredFile], has_more: bool) -> FileListReply:
    return {
        "object": "list",
        "data": [file_reply(record) for record in records],
        "first_id": records[0].id if records else None,
        "last_id": records[-1].id if records else None,
        "has_more": has_more,
    }
