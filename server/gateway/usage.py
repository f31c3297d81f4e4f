"""The usage log: a line of JSON for each batch of tokens that was delivered, from which bills are made.

Lines are whole and appended with one write, so several processes may share a file, and it may be moved away at any time: the
next line goes to a new one. Lines of the last FLUSH_SECONDS are in memory; what is written is fsynced every SYNC_SECONDS and at
the end.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from jaxserve.errors import ConfigError

_LOG = logging.getLogger(__name__)

FLUSH_SECONDS = 0.25
SYNC_SECONDS = 1.0
MAX_WAITING = 100_000  # sequences with unwritten usage, while the disk is full


class UsageEvent(msgspec.Struct, kw_only=True):
    """Tokens of one sequence that were delivered since its last event.

    Sums over a request's events are what is to be paid: prompt tokens stand in the first event of a prompt only.

    Attributes:
        time: of the first of them, UTC.
        model, service_class: what was used; an empty class is the server's default.
        prompt_tokens, cached_tokens: of the prompt, and how many of them were in the prefix cache.
        reason: why, if it has: a finish reason, an error code, or "disconnected".
    """

    time: str = ""
    request_id: str
    completion_id: str
    tenant: str
    key_id: str
    model: str
    service_class: str
    prompt: int
    index: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    final: bool = False
    reason: str | None = None


class UsageSink(Protocol):
    def add(self, event: UsageEvent) -> None:
        """Take one; never waits."""
        ...


@dataclass(frozen=True, slots=True)
class _Opened:
    descriptor: int
    identity: tuple[int, int]


class UsageLog:
    """Appends events to a file, in a thread of its own.

    Events of one sequence that wait together are written as one, so a full disk or a slow one costs memory by sequences, not by
    tokens. Beyond MAX_WAITING sequences events are lost, counted, and the log says so.

    Args:
        path: the file; ConfigError if it cannot be appended to.
        on_lost: told of delivered tokens that will never be in the file.
    """

    def __init__(self, path: str, on_lost: Callable[[int], None] = lambda count: None) -> None:
        self._path = path
        self._on_lost = on_lost
        self._encoder = msgspec.json.Encoder()
        self._waiting: dict[tuple[str | int, ...], UsageEvent] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._rounds = 0  # since the last sync
        self._broken = False  # whether the file ends within a line
        self._failed = False
        self._lost = 0
        self._file = _first(path)
        self._thread = threading.Thread(target=self._work, name="jaxserve-usage-log", daemon=True)
        self._thread.start()

    @property
    def lost_tokens(self) -> int:
        return self._lost

    def add(self, event: UsageEvent) -> None:
        # Clients may name requests and answers themselves, and so alike: what makes them one must pay alike.
        who = (event.tenant, event.key_id, event.model, event.service_class, event.request_id)
        name = (*who, event.completion_id, event.prompt, event.index)
        with self._lock:
            known = self._waiting.get(name)
            if known is not None:
                known.prompt_tokens += event.prompt_tokens
                known.cached_tokens += event.cached_tokens
                known.completion_tokens += event.completion_tokens
                known.final = known.final or event.final
                known.reason = known.reason or event.reason
            elif len(self._waiting) < MAX_WAITING:
                event.time = event.time or datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
                self._waiting[name] = event
            else:
                if not self._lost:
                    _LOG.error("too much usage waits to be written to %s: from now on some is lost", self._path)
                self._lose(event.completion_tokens)

    def close(self) -> None:
        """Write what waits, sync and close. Events added later are lost."""
        self._ended.set()
        self._thread.join()
        self._lose(sum(event.completion_tokens for event in self._waiting.values()))
        if self._lost:
            _LOG.error("%d delivered tokens are missing in %s", self._lost, self._path)

    def _lose(self, count: int) -> None:
        self._lost += count
        self._on_lost(count)

    def _work(self) -> None:
        while not self._ended.wait(FLUSH_SECONDS):
            self._flush(sync=False)
        self._flush(sync=True)
        os.close(self._file.descriptor)

    def _flush(self, *, sync: bool) -> None:
        with self._lock:
            events, self._waiting = list(self._waiting.values()), {}
        try:
            if events:
                self._reopen_if_moved()
                self._write(events)
            self._rounds += 1
            if sync or self._rounds * FLUSH_SECONDS >= SYNC_SECONDS:
                os.fdatasync(self._file.descriptor)
                self._rounds = 0
            self._failed = False
        except OSError as error:
            self._take_back(events)
            if not self._failed:
                _LOG.error("usage cannot be written to %s, and waits: %s", self._path, error)
            self._failed = True

    def _write(self, events: list[UsageEvent]) -> None:
        """Append the events, and take those that are written off the list: a full disk takes a part of them.

        What it takes of a line stays there, for others may have appended since; the line is ended and written again.
        """
        lines = [self._encoder.encode(event) + b"\n" for event in events]
        start = b"\n" if self._broken else b""
        wanted = start + b"".join(lines)
        written = wanted[: os.write(self._file.descriptor, wanted)]
        if written:
            self._broken = not written.endswith(b"\n")
        del events[: written[len(start) :].count(b"\n")]
        if events:
            raise OSError(errno.ENOSPC, f"only {len(written)} of {len(wanted)} bytes were taken")

    def _take_back(self, events: list[UsageEvent]) -> None:
        """Let events wait again, before those that came since."""
        with self._lock:
            newer, self._waiting = self._waiting, {}
        for event in (*events, *newer.values()):
            self.add(event)

    def _reopen_if_moved(self) -> None:
        try:
            status = os.stat(self._path)
            if (status.st_dev, status.st_ino) == self._file.identity:
                return
        except FileNotFoundError:
            pass
        moved, self._file, self._broken = self._file, _open(self._path), False
        os.fsync(moved.descriptor)
        os.close(moved.descriptor)


def check_usage_log(path: str) -> None:
    """Raise ConfigError if the file cannot be appended to."""
    os.close(_first(path).descriptor)


def _first(path: str) -> _Opened:
    try:
        return _open(path)
    except (OSError, ValueError) as error:  # the latter for what is no path at all
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"usage_log: cannot append to {path!r}: {reason}", param="usage_log") from error


def _open(path: str) -> _Opened:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    status = os.fstat(descriptor)
    return _Opened(descriptor, (status.st_dev, status.st_ino))
