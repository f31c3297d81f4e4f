"""What clients are told of their streams."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from server.gateway.messages import Entry


class StreamReply(TypedDict):
    """One stream, or another answer that is kept under an id."""

    id: str
    object: Literal["stream"]
    status: Literal["running", "done"]
    events: int | None
    created_at: int


class StreamListReply(TypedDict):
    """All of the caller's streams, oldest first."""

    object: Literal["list"]
    data: list[StreamReply]


class StreamDeletedReply(TypedDict):
    """A stream that is gone."""

    id: str
    object: Literal["stream"]
    deleted: Literal[True]


def stream_reply(entry: Entry, now: float) -> StreamReply:
    return {
        "id": entry.key,
        "object": "stream",
        "status": entry.state,
        "events": entry.events,
        "created_at": int(now - entry.age),
    }
