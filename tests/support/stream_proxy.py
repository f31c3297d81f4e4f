"""A TCP proxy that stops an event stream in the middle: cut, or held until it is let go."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.tcp_proxy import TcpProxy

_LOOK_EVERY = 0.05  # seconds between looks at whether a held stream may go on


class StreamProxy(TcpProxy):
    """Stops one stream of events at a time."""

    def __init__(self, target: int) -> None:
        self._left: int | None = None
        self._cut = False
        self._free = threading.Event()
        super().__init__(target)

    def hold_after(self, size: int) -> None:
        """Hold the next event stream after so many bytes, until `let_go` or `cut`."""
        self._free.clear()
        self._left, self._cut = size, False

    def let_go(self) -> None:
        self._free.set()

    def cut(self) -> None:
        """Break the connection of what is held."""
        self._cut = True
        self._free.set()

    def close(self) -> None:
        """End all connections."""
        self._free.set()
        super().close()

    def pass_on(self, client: socket.socket, server: socket.socket) -> None:
        left: int | None = None  # bytes up to where this connection's stream stops
        with client, server, contextlib.suppress(OSError):
            while True:
                for source in select.select((client, server), (), ())[0]:
                    piece = source.recv(4096)
                    if not piece:
                        return
                    if source is client:
                        server.sendall(piece)
                        continue
                    if self._left is not None and b"text/event-stream" in piece:
                        left, self._left = self._left, None
                    if left is not None and len(piece) >= left:
                        client.sendall(piece[:left])
                        if not self._freed(client) or self._cut:
                            return
                        piece, left = piece[left:], None
                    client.sendall(piece)
                    left = None if left is None else left - len(piece)

    def _freed(self, client: socket.socket) -> bool:
        """Wait until the stream is let go: true, or until its client is gone: false."""
        while not self._free.is_set():
            if select.select((client,), (), (), _LOOK_EVERY)[0] and not client.recv(4096, socket.MSG_PEEK):
                return False
        return True


@contextmanager
def stream_proxy(target: int) -> Iterator[StreamProxy]:
    proxy = StreamProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
