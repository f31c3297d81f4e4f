"""A TCP proxy that cuts connections after so many bytes of answers."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class CuttingProxy:
    """Passes connections on to a port of this machine.

    Attributes:
        cuts: bytes of answers after which connections are cut, one a connection; those that come later stay.
        taken: connections so far, those included for which there was no server.
        made: those that reached it: the port from which each did.
        target: where they go; may be changed.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.cuts: deque[int] = deque()
        self.taken = 0
        self.made: list[int] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[tuple[threading.Thread, socket.socket]] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def cut(self, *sizes: int) -> None:
        self.cuts.extend(sizes)

    def close(self) -> None:
        """End all connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        for thread, client in self._open:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.taken += 1
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            self.made.append(server.getsockname()[1])
            left = self.cuts.popleft() if self.cuts else None
            thread = threading.Thread(target=_pass_on, args=(client, server, left))
            self._open.append((thread, client))
            thread.start()


def _pass_on(client: socket.socket, server: socket.socket, left: int | None) -> None:
    """Until either side ends, or the server has said so many bytes; then both sides see it."""
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
