"""HTTP connections: how much, and for how long, their clients may keep a server waiting.

uvicorn reads and answers; this says when a client takes too long, or sends too much, to be answered. How long bodies may be is
for the gate, which reads them, to say.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

import httptools
import msgspec
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from jaxserve.config.server import ServerConfig
from jaxserve.errors import InvalidRequestError, JaxserveError, OverloadedError, RequestTooLargeError
from server.errors import http_body, http_headers
from server.gateway.routes import is_upload
from server.http.http10 import without_chunks
from server.http.middleware import canonical

BYTES_A_SECOND = 500  # of a head or a body: who sends more slowly falls behind
LINGER_SECONDS = 2.0  # for which what a refused client still sends is thrown away: closing at once could cost it the answer

# Bytes that wait in this process, and in the kernel, for a client that does not read; what else there is waits in its stream.
_WRITE_BUFFER = 32 * 2**10
_UNSENT = 32 * 2**10
_LONGEST_MS = 2**31 - 1  # that the kernel can count

_UPGRADE = re.compile(rb"\nupgrade:", re.IGNORECASE)

# A peer that vanished is noticed by the kernel after two minutes.
_SOCKET_OPTIONS: Mapping[str, int] = MappingProxyType(
    {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4, "TCP_NOTSENT_LOWAT": _UNSENT}
)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What clients may do.

    Attributes:
        idle_seconds: between requests, and before the first.
        receive_seconds: that a client may fall behind BYTES_A_SECOND in a head or a body; what it sends faster earlier does
            not count.
        body_seconds: for a body, however fast it comes.
        upload_seconds: for one that is stored as it comes.
        unread_seconds: that a full write buffer may stay full.
    """

    max_connections: int
    max_head_bytes: int
    idle_seconds: float
    receive_seconds: float
    body_seconds: float
    upload_seconds: float
    unread_seconds: float

    @classmethod
    def of(cls, config: ServerConfig) -> ConnectionLimits:
        return cls(
            max_connections=config.max_connections,
            max_head_bytes=config.max_header_kib * 2**10,
            idle_seconds=config.http_keepalive,
            receive_seconds=config.receive_timeout,
            body_seconds=config.body_timeout,
            upload_seconds=config.upload_timeout,
            unread_seconds=config.unread_timeout,
        )


class _Refusal(Exception):
    """A request that goes no further, and its answer."""

    def __init__(self, status: HTTPStatus, error: JaxserveError) -> None:
        super().__init__(error.message)
        self.status = status
        self.error = error


class _Reading(Enum):
    NOTHING = auto()
    HEAD = auto()
    BODY = auto()
    REFUSED = auto()  # it was answered before its end


class Connection(HttpToolsProtocol):
    """One connection. `check` must be called about once a second.

    Args:
        config, server_state, app_state, _loop: uvicorn's.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._reading = _Reading.NOTHING
        self._since = self.loop.time()  # when it began to be so, but for time that was not the client's
        self._looked_at = self._since
        self._behind_at = 0.0  # when the client will have fallen behind, if nothing comes
        self._received = 0  # bytes of the head or the body that is being read
        self._messages = 0
        self._blocked: float | None = None  # since when nothing more can be written
        self._closing: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        _set_options(transport.get_extra_info("socket"), self._limits)
        if len(self.connections) > self._limits.max_connections:
            error = OverloadedError(f"the server has {self._limits.max_connections} connections (max_connections)")
            self._refuse(_Refusal(HTTPStatus.SERVICE_UNAVAILABLE, error))

    def data_received(self, data: bytes) -> None:
        """Read on; anything but HTTP is answered and ends the connection."""
        if self._reading is _Reading.REFUSED or self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        messages = self._messages
        try:
            self.parser.feed_data(data if self._reading is _Reading.BODY else _without_upgrade(data))
        except httptools.HttpParserUpgrade:
            error = InvalidRequestError("upgrades to other protocols are not served")
            self._refuse(_Refusal(HTTPStatus.BAD_REQUEST, error))
            return
        except httptools.HttpParserError as failure:
            refusal = failure.__context__  # what a callback raised
            if not isinstance(refusal, _Refusal):
                refusal = _Refusal(HTTPStatus.BAD_REQUEST, InvalidRequestError("the request is not valid HTTP"))
            self._refuse(refusal)
            return
        if messages == self._messages:  # else it is of several requests
            self._received += len(data)
            latest = self.loop.time() + self._limits.receive_seconds
            self._behind_at = min(self._behind_at + len(data) / BYTES_A_SECOND, latest)
        if self._reading is _Reading.HEAD and self._received > self._limits.max_head_bytes:
            self._refuse(self._head_too_long())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._messages += 1
        self._reads(_Reading.HEAD)

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + len(b": \r\n") for name, value in self.headers)
        if size > self._limits.max_head_bytes:
            raise self._head_too_long()
        self._check_host()
        super().on_headers_complete()
        self._reads(_Reading.BODY)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        old = cycle.scope["http_version"] == "1.0"
        super()._start_asgi_task(cycle, without_chunks(cycle, app) if old else app)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._reads(_Reading.NOTHING)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._since = self.loop.time()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._blocked = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._blocked = None

    def check(self, now: float) -> None:
        """End the connection if its client takes too long; `now` is the loop's time."""
        limits, still = self._limits, now - self._since
        before, self._looked_at = self._looked_at, now
        if self.transport.is_closing():
            self._closing = now if self._closing is None else self._closing
            if now - self._closing > limits.unread_seconds:
                self.transport.abort()
        elif self._blocked is not None:
            if now - self._blocked > limits.unread_seconds:
                self.transport.abort()
        elif self.flow.read_paused or self.pipeline:  # the time is not the client's
            self._since += now - max(before, self._since)
            self._behind_at = now + limits.receive_seconds
        elif self._reading is _Reading.REFUSED or (self._reading is _Reading.BODY and self.cycle.response_complete):
            if still > LINGER_SECONDS:
                self.transport.close()
        elif self._reading is _Reading.BODY or (self._reading is _Reading.HEAD and not self._answering):
            self._check_pace(now)
        elif self._reading is _Reading.NOTHING and not self._answering and still > limits.idle_seconds:
            self.transport.close()

    def _check_pace(self, now: float) -> None:
        what, still = self._reading.name.lower(), now - self._since
        if now > self._behind_at:
            found = f"came at less than {BYTES_A_SECOND} bytes a second and took more than {still:.0f} s (receive_timeout)"
        elif self._reading is _Reading.BODY and still > self._most_seconds:
            name = "upload_timeout" if self._is_upload else "body_timeout"
            found = f"took more than {self._most_seconds:g} s ({name})"
        else:
            return
        self._refuse(_Refusal(HTTPStatus.REQUEST_TIMEOUT, InvalidRequestError(f"the {what} of the request {found}")))

    @property
    def _is_upload(self) -> bool:
        return is_upload(self.scope["method"], canonical(self.scope["path"]))

    @property
    def _most_seconds(self) -> float:
        return self._limits.upload_seconds if self._is_upload else self._limits.body_seconds

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _reads(self, reading: _Reading) -> None:
        if self._reading is not _Reading.REFUSED:
            self._reading, self._since, self._received = reading, self.loop.time(), 0
            self._behind_at = self._since + self._limits.receive_seconds

    def _check_host(self) -> None:
        """Refuse what does not say, or says twice, whom it is for (RFC 9112, section 3.2): others may read another of two."""
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() != "1.0"):
            found = "has no Host" if not hosts else f"has {hosts} Host headers"
            raise _Refusal(HTTPStatus.BAD_REQUEST, InvalidRequestError(f"the request {found}, and needs one", param="Host"))

    def _head_too_long(self) -> _Refusal:
        limit = self._limits.max_head_bytes
        error = RequestTooLargeError(f"request line and headers are longer than {limit} bytes (max_header_kib)")
        return _Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, error)

    def _refuse(self, refusal: _Refusal) -> None:
        """Answer with an error and close. Nothing is written into an answer that has begun."""
        self._reads(_Reading.REFUSED)
        if self._answering:
            if self.cycle.response_started or self.pipeline:
                self.transport.abort()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = msgspec.json.encode(http_body(refusal.error))
        headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        lines = [f"{name}: {value}\r\n".encode() for name, value in {**headers, **http_headers(refusal.error)}.items()]
        self.transport.write(b"".join([STATUS_LINE[refusal.status], *lines, b"\r\n", body]))
        if self.transport.can_write_eof():
            self.transport.write_eof()


def connections(limits: ConnectionLimits) -> Callable[..., Connection]:
    def connection(**given: Any) -> Connection:
        return Connection(limits, **given)

    return connection


def _without_upgrade(data: bytes) -> bytes:
    """The data without a wish that is not granted, such as Java's for HTTP/2: the parser would drop the request's body."""
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\nx-grade:", head) + end + rest


def _set_options(connected: socket.socket | None, limits: ConnectionLimits) -> None:
    """Let the kernel notice peers that vanished, and hold back what they do not take. Options that it lacks are left out."""
    if connected is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {**_SOCKET_OPTIONS, "TCP_USER_TIMEOUT": round(min(limits.unread_seconds * 1000, _LONGEST_MS))}
    for name, value in options.items():
        number = getattr(socket, name, None)
        if number is not None:
            connected.setsockopt(socket.IPPROTO_TCP, number, value)
