"""A TCP proxy that cuts connections after so many bytes of answers."""

from __future__ import annotations

import contextlib
import select
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.support.tcp_proxy import TcpProxy


class CuttingProxy(TcpProxy):
    """Cuts some of its connections.

    Attributes:
        cuts: bytes of answers after which connections are cut, one a connection; those that come later stay.
    """

    def __init__(self, target: int) -> None:
        self.cuts: deque[int] = deque()
        super().__init__(target)

    def cut(self, *sizes: int) -> None:
        self.cuts.extend(sizes)

    def pass_on(self, client: socket.socket, server: socket.socket) -> None:
        """Until either side ends, or the server has said so many bytes; then both sides see it."""
        left = self.cuts.popleft() if self.cuts else None
        with client, server, contextlib.suppress(OSError):
            while left != 0:
                for source in select.select((client, server), (), ())[0]:
                    piece = source.recv(65536)
                    if not piece:
                        return
                    if source is client:
                        server.sendall(piece)
                        continue
                    piece = piece[:left]
                    client.sendall(piece)
                    left = None if left is None else left - len(piece)


@contextmanager
def cutting_proxy(target: int, cuts: Sequence[int] = ()) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(target)
    proxy.cut(*cuts)
    try:
        yield proxy
    finally:
        proxy.close()
