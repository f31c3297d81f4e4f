"""HTTP/1.1 exchanges over kept connections, parsed in C: the generator must cost less than what it measures."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools

OnBody = Callable[[bytes, float], None]
"""Takes a piece of the body and the time at which it came, seconds of `time.perf_counter`."""


@dataclass(slots=True)
class Reply:
    """A reply's head. Header names are in lower case."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)


class Connections:
    """Connections to one server, kept open between exchanges.

    Args:
        base_url: http or https, with an optional path that goes before every request's.
    """

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        self._prefix = parts.path.rstrip("/")
        self._host = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._authority = parts.netloc.rpartition("@")[2]
        self._idle: list[_Connection] = []

    async def exchange(self, method: str, path: str, headers: Mapping[str, str], body: bytes, on_body: OnBody) -> Reply:
        """Send a request and hand over the body of its reply as it comes. Returns when the reply is whole.

        Raises OSError if the server cannot be reached, leaves in the middle, or does not speak HTTP.
        """
        connection = self._idle.pop() if self._idle else await self._connect()
        if connection.closed:
            connection = await self._connect()
        fields = {"Host": self._authority, "Content-Length": str(len(body)), **headers}
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        try:
            reply = await connection.send(head.encode("latin-1") + b"\r\n" + body, on_body)
        except BaseException:
            connection.close()
            raise
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.close()
        return reply

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: _Connection(loop), self._host, self._port, ssl=self._tls)
        return connection


class _Connection(asyncio.Protocol):
    """One exchange at a time; httptools calls the methods without an underscore whose names begin with `on_`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[Reply] | None = None
        self._sink: OnBody | None = None
        self._reply = Reply()
        self._now = 0.0
        self.closed = False
        self.reusable = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._fail(ConnectionResetError(f"the server closed the connection: {exc or 'no reason given'}"))

    async def send(self, request: bytes, sink: OnBody) -> Reply:
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._reply, self._sink, self.reusable = Reply(), sink, False
        self._done = self._loop.create_future()
        self._transport.write(request)
        return await self._done

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()  # the loop's own time is whole milliseconds
        if self._done is None or self._done.done():
            self.close()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"the server does not answer in HTTP: {error}"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._reply.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._reply.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._sink is not None:
            self._sink(body, self._now)

    def on_message_complete(self) -> None:
        self.reusable = self._parser.should_keep_alive() and not self.closed
        if self._done is not None and not self._done.done():
            self._done.set_result(self._reply)

    def _fail(self, error: OSError) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
