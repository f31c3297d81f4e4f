"""What an engine and its front ends say to each other, and how updates, log-probabilities and errors look on the way."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from jaxserve.engine.link import EngineDescription, EngineLoad
from jaxserve.engine.loop import Outcome, Refusal
from jaxserve.errors import ErrorCode, InternalError, JaxserveError
from jaxserve.scheduler.request import EngineRequest, Update
from jaxserve.step.plan import LogprobRows
from jaxserve.types import FinishReason

NO_ROW = -1


def protocol() -> str:
    """What both sides must have in common: the release, for nothing here is kept stable between releases."""
    return f"jaxserve {version('jaxserve')}"


class _Message(msgspec.Struct, frozen=True, array_like=True, tag_field="kind"):
    """Arrays on the wire, told apart by their first element."""


class WireError(msgspec.Struct, frozen=True, array_like=True):
    """A JaxserveError."""

    code: ErrorCode
    message: str
    param: str | None
    retry_after: float | None


class WireRows(msgspec.Struct, frozen=True, array_like=True):
    """LogprobRows as raw bytes; `columns` alternatives a row."""

    columns: int
    chosen: bytes
    rank: bytes
    top_ids: bytes
    top: bytes


class WireUpdate(msgspec.Struct, frozen=True, array_like=True):
    """An Update; `row` of the turn's log-probabilities is its token's."""

    id: str
    token: int | None
    num_cached: int
    queue_time: float
    row: int
    reason: FinishReason | None
    matched: int | None
    score: WireRows | None
    error: WireError | None


class WireRefusal(msgspec.Struct, frozen=True, array_like=True):
    """A Refusal."""

    ids: tuple[str, ...]
    error: WireError


class Hello(_Message, frozen=True, tag="hello"):
    """A front end introduces itself."""

    protocol: str


class Add(_Message, frozen=True, tag="add"):
    """The sequences of one request."""

    requests: list[EngineRequest]


class Abort(_Message, frozen=True, tag="abort"):
    """End sequences."""

    ids: list[str]


class Demote(_Message, frozen=True, tag="demote"):
    """Let sequences give way to all others, or no longer."""

    ids: list[str]
    demoted: bool


class Call(_Message, frozen=True, tag="call"):
    """A named call; its answer has the same number."""

    number: int
    name: str
    argument: bytes


class Welcome(_Message, frozen=True, tag="welcome"):
    """The engine takes a front end."""

    description: EngineDescription


class Turned(_Message, frozen=True, tag="turned"):
    """What a turn of the engine was to one front end; from time to time also where it was nothing.

    Attributes:
        heartbeat: time of the latest turn, by the machine's monotonic clock.
        load: of the engine.
        updates, refusals: of the front end's sequences.
        logprobs: of the updates' tokens, if any wanted them.
    """

    heartbeat: float
    load: EngineLoad
    updates: list[WireUpdate] = []
    logprobs: WireRows | None = None
    refusals: list[WireRefusal] = []


class Answer(_Message, frozen=True, tag="answer"):
    """What a call returned or raised."""

    number: int
    payload: bytes = b""
    error: WireError | None = None


class Farewell(_Message, frozen=True, tag="farewell"):
    """The engine runs nothing of this front end any more: it died, or does not take the front end as it is."""

    error: WireError


FromFrontend = Hello | Add | Abort | Demote | Call
FromEngine = Welcome | Turned | Answer | Farewell

_ENCODER = msgspec.msgpack.Encoder()
_FROM_FRONTEND: msgspec.msgpack.Decoder[FromFrontend] = msgspec.msgpack.Decoder(FromFrontend)
_FROM_ENGINE: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode(message: FromFrontend | FromEngine) -> bytes:
    """A message as bytes."""
    return _ENCODER.encode(message)


def decode_from_frontend(content: bytes) -> FromFrontend:
    """The message to an engine. Raises msgspec.DecodeError."""
    return _FROM_FRONTEND.decode(content)


def decode_from_engine(content: bytes) -> FromEngine:
    """The message to a front end. Raises msgspec.DecodeError."""
    return _FROM_ENGINE.decode(content)


def turned(heartbeat: float, load: EngineLoad, outcomes: Sequence[Outcome]) -> Turned:
    """The outcomes of a turn for one front end."""
    updates: list[WireUpdate] = []
    rows: list[tuple[LogprobRows, int]] = []
    refusals: list[WireRefusal] = []
    for outcome in outcomes:
        if isinstance(outcome, Refusal):
            refusals.append(WireRefusal(outcome.ids, wire_error(outcome.error)))
            continue
        row = NO_ROW
        if outcome.logprobs is not None:
            row = len(rows)
            rows.append((outcome.logprobs, outcome.index))
        updates.append(
            WireUpdate(
                id=outcome.id,
                token=outcome.token,
                num_cached=outcome.num_cached,
                queue_time=outcome.queue_time,
                row=row,
                reason=outcome.reason,
                matched=outcome.matched,
                score=None if outcome.score is None else _wire_rows(outcome.score),
                error=None if outcome.error is None else wire_error(outcome.error),
            )
        )
    return Turned(heartbeat, load, updates, _wire_rows(_gathered(rows)) if rows else None, refusals)


def outcomes_of(message: Turned) -> list[Outcome]:
    """The outcomes that `turned` was given."""
    logprobs = None if message.logprobs is None else _rows(message.logprobs)
    outcomes: list[Outcome] = [Refusal(refusal.ids, error_of(refusal.error)) for refusal in message.refusals]
    outcomes += [
        Update(
            update.id,
            update.token,
            None if update.row == NO_ROW else logprobs,
            max(update.row, 0),
            None if update.score is None else _rows(update.score),
            update.reason,
            None if update.error is None else error_of(update.error),
            update.matched,
            update.num_cached,
            update.queue_time,
        )
        for update in message.updates
    ]
    return outcomes


def wire_error(error: BaseException) -> WireError:
    """An error for the wire; what is no JaxserveError becomes an InternalError."""
    if not isinstance(error, JaxserveError):
        error = InternalError(f"the engine failed: {error!r}")
    return WireError(error.code, error.message, error.param, error.retry_after)


def error_of(error: WireError) -> JaxserveError:
    """The error that was sent, of its own class."""
    return _class_of(error.code)(error.message, param=error.param, retry_after=error.retry_after)


def _class_of(code: ErrorCode) -> type[JaxserveError]:
    """The class whose code it is; errors of no class of their own are internal ones."""
    if code is InternalError.code:
        return InternalError
    found = [JaxserveError]
    for kind in found:
        if kind.code is code and kind is not JaxserveError:
            return kind
        found += kind.__subclasses__()
    raise ValueError(f"no error has the code {code}")


def _gathered(rows: Sequence[tuple[LogprobRows, int]]) -> LogprobRows:
    """The given rows of the given steps, one after another: no front end gets those of another."""
    first = rows[0][0]
    if all(logprobs is first for logprobs, _ in rows):
        return _taken(first, [index for _, index in rows])
    parts = [_taken(logprobs, [index]) for logprobs, index in rows]
    return LogprobRows(
        chosen=np.concatenate([part.chosen for part in parts]),
        rank=np.concatenate([part.rank for part in parts]),
        top_ids=np.concatenate([part.top_ids for part in parts]),
        top=np.concatenate([part.top for part in parts]),
    )


def _taken(rows: LogprobRows, indices: list[int]) -> LogprobRows:
    return LogprobRows(rows.chosen[indices], rows.rank[indices], rows.top_ids[indices], rows.top[indices])


def _wire_rows(rows: LogprobRows) -> WireRows:
    return WireRows(
        columns=rows.top_ids.shape[1],
        chosen=_bytes(rows.chosen, np.float32),
        rank=_bytes(rows.rank, np.int32),
        top_ids=_bytes(rows.top_ids, np.int32),
        top=_bytes(rows.top, np.float32),
    )


def _bytes(values: npt.NDArray[Any], kind: type[np.float32] | type[np.int32]) -> bytes:
    return np.ascontiguousarray(values, kind).tobytes()


def _rows(rows: WireRows) -> LogprobRows:
    rank = np.frombuffer(rows.rank, np.int32)
    shape = (len(rank), rows.columns)
    return LogprobRows(
        chosen=np.frombuffer(rows.chosen, np.float32),
        rank=rank,
        top_ids=np.frombuffer(rows.top_ids, np.int32).reshape(shape),
        top=np.frombuffer(rows.top, np.float32).reshape(shape),
    )
