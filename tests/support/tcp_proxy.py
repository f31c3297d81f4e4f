"""A TCP proxy between a client and a port of this machine, as a test needs it to behave."""

from __future__ import annotations

import contextlib
import socket
import threading


class TcpProxy:
    """Takes connections in a thread of its own, and gives each, with one to the target, a thread that passes on what comes.

    Attributes:
        port: that it listens to.
        target: where connections go; may be changed.
        taken: connections so far, those included for which there was no server.
        made: those that reached it: the port from which each did.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.taken = 0
        self.made: list[int] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[tuple[threading.Thread, socket.socket]] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def pass_on(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on until either side ends; closes both."""
        raise NotImplementedError

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
            thread = threading.Thread(target=self.pass_on, args=(client, server))
            self._open.append((thread, client))
            thread.start()
