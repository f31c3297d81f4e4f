"""A front end's connection to an engine: messages are handed over in the event loop, without a task or a future for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq

from jaxserve.engine.remote.curve import unlock

# Messages taken in before readers run. Where a front end falls behind, the tokens of several steps wait for its readers together
# and so are sent together, which costs little more than one: it catches up. A bound in seconds would shrink where the machine is
# busy, which is where it is needed. Not more, for new calls wait too: grpc.aio accepts one a turn of the event loop.
BURST = 16

_READABLE = int(zmq.POLLIN)  # its enum is slow, and this is asked several times a message


class Connection:
    """A socket to one engine, with a name of its own. Belongs to the event loop that it is made in; `close` it.

    Args:
        context: of the socket.
        address: the endpoint that the engine listens at, now or later.
        take: called with every message; what it raises ends the connection.
        key: the engine's public key, if it has keys.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, take: Callable[[bytes], None], key: str | None = None
    ) -> None:
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._gone = False
        self._socket = context.socket(zmq.DEALER)
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.set(zmq.LINGER, 0)
        if key is not None:
            unlock(self._socket, key)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._loop.add_reader(self._socket.fileno(), self._read)
        self._loop.add_reader(self._monitor.fileno(), self._read_monitor)
        self._socket.connect(address)
        self._soon: asyncio.Handle | None = None  # the next reading, where it waits for no descriptor
        # A descriptor says nothing before it was seen that there is nothing. The socket's is looked at by the first `send`: an
        # engine speaks to nobody who has not.
        self._loop.call_soon(self._read_monitor)

    def send(self, content: bytes) -> None:
        """Send a message; what waits has no bound, so it is never delayed and never refused."""
        self._socket.send(content, zmq.NOBLOCK)
        if self._readable(self._socket):  # sending may have taken the word that there is something from the descriptor
            self._read_soon()

    async def ended(self) -> None:
        """Wait until the engine is gone and all that it sent is taken. Raises what `take` raised."""
        await self._ended

    def give_up(self) -> None:
        """Wait no longer for an engine at this address; nothing is taken any more."""
        if not self._ended.done():
            self._ended.set_result(None)

    def close(self) -> None:
        self._ended.cancel()
        for one in (self._socket, self._monitor):
            self._loop.remove_reader(one.fileno())
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()

    def _read_soon(self) -> None:
        if self._soon is None:
            self._soon = self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        self._soon = None
        self._read()

    def _read(self) -> None:
        if self._soon is not None or self._ended.done():  # first those run who wait for what was taken
            return
        try:
            for _ in range(BURST):
                if not self._readable(self._socket):
                    break
                self._take(self._socket.recv(zmq.NOBLOCK))
            else:  # the descriptor says only once that there is something
                self._read_soon()
                return
        except Exception as error:
            self._ended.set_exception(error)
            return
        if self._gone:
            self._ended.set_result(None)

    def _read_monitor(self) -> None:
        if not self._ended.done() and self._readable(self._monitor):
            self._gone = True
            self._loop.remove_reader(self._monitor.fileno())
            self._read()

    @staticmethod
    def _readable(one: zmq.Socket[bytes]) -> bool:
        """Whether something can be received. Where there is nothing, the descriptor will say when there is."""
        events = one.get(zmq.EVENTS)
        assert isinstance(events, int)
        return bool(events & _READABLE)
