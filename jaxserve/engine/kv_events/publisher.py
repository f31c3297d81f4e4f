"""Sends KV events over ZeroMQ from a thread of its own, as vLLM does: PUB for all, ROUTER for who missed some."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import zmq

from jaxserve.cache.events import CacheEvent
from jaxserve.config.kv_events import KVEventsConfig
from jaxserve.engine.kv_events.replays import NUMBER_BYTES, RETRY_MS, Kept, Replays, replay_socket
from jaxserve.engine.kv_events.wire import RANK, Encode
from jaxserve.errors import ConfigError

logger = logging.getLogger(__name__)

LINGER_MS = 500  # for the last batches
_WAKES = 4096  # bytes, each a wish to be woken, that are taken at once
_ANY = ("0.0.0.0", "*", "[::]")  # hosts of what listens at all addresses


@dataclass(frozen=True, slots=True)
class KVEventSource:
    """Where the events of one engine can be had; the names are vLLM's."""

    data_parallel_rank: int
    endpoint: str
    replay_endpoint: str | None
    topic: str


@dataclass(frozen=True, slots=True)
class _Batch:
    number: int
    seconds: float
    events: Sequence[CacheEvent]


class KVEventPublisher:
    """Publishes until it is closed.

    Attributes:
        source: where, with the ports that were found where settings leave that open.

    Args:
        encode: makes a batch of events.

    Raises ConfigError for an endpoint that cannot be had.
    """

    def __init__(self, config: KVEventsConfig, encode: Encode) -> None:
        self._encode = encode
        self._topic = config.topic.encode()
        self._next = 0
        self._queue: queue.Queue[_Batch] = queue.Queue(config.max_queue_size)
        self._sent: Kept = deque(maxlen=config.buffer_steps)
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._closing = False
        self._context = zmq.Context()
        self._events = self._context.socket(zmq.PUB)
        self._events.set(zmq.SNDHWM, config.hwm)
        self._replay_socket: zmq.Socket[bytes] | None = None
        self._replays = Replays(self._send_replay, self._sent, time.monotonic)
        try:
            endpoint, replay = _open(self._events, config.endpoint, listens=_listens(config.endpoint)), None
            if config.replay_endpoint is not None:
                self._replay_socket = replay_socket(self._context)
                replay = _open(self._replay_socket, config.replay_endpoint, listens=True)
        except ConfigError:
            self._end()
            raise
        self.source = KVEventSource(RANK, endpoint, replay, config.topic)
        self._thread = threading.Thread(target=self._run, name="jaxserve-kv-events", daemon=True)
        self._thread.start()

    def take(self, events: Sequence[CacheEvent]) -> None:
        """Send these, in one batch, soon. Never blocks; called by one thread."""
        batch = _Batch(self._next, time.time(), events)
        self._next += 1  # of one that is lost, too: who follows sees that it is missing
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(batch)
            self._wake()

    def close(self) -> None:
        """Send what waits, and end."""
        self._closing = True
        self._wake()
        self._thread.join()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # the pipe is full, and it will wake up anyway
            self._waker.send(b"\0")

    # In the thread.

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._woken, zmq.POLLIN)
        if self._replay_socket is not None:
            poller.register(self._replay_socket, zmq.POLLIN)
        try:
            while not self._closing:
                ready = dict(poller.poll(RETRY_MS if self._replays else None))
                if self._woken.fileno() in ready:
                    self._woken.recv(_WAKES)
                    self._send_all()
                if self._replay_socket is not None and self._replay_socket in ready:
                    self._take_request(self._replay_socket)
                self._replays.go_on()
            self._send_all()
        except Exception:
            logger.exception("KV events are published no more")
        finally:
            self._end()

    def _send_all(self) -> None:
        while True:
            try:
                batch = self._queue.get_nowait()
            except queue.Empty:
                return
            number, payload = batch.number.to_bytes(NUMBER_BYTES, "big"), self._encode(batch.seconds, batch.events)
            self._events.send_multipart((self._topic, number, payload))  # a PUB never blocks: who does not read misses it
            self._sent.append((number, payload))

    def _take_request(self, replays: zmq.Socket[bytes]) -> None:
        """Begin the replay that a reader asks for."""
        frames = replays.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != NUMBER_BYTES:
            logger.warning("a request for past KV events is %d frames, not the number of the first batch", len(frames) - 1)
            return
        client, _, first = frames
        self._send_all()
        self._replays.begin(client, first)

    def _send_replay(self, frames: tuple[bytes, ...]) -> None:
        assert self._replay_socket is not None
        self._replay_socket.send_multipart(frames, zmq.NOBLOCK)

    def _end(self) -> None:
        self._context.destroy(LINGER_MS)
        self._waker.close()
        self._woken.close()


def _listens(endpoint: str) -> bool:
    """By vLLM's rule: there are many engines and one subscriber where the endpoint is another machine's."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def _open(one: zmq.Socket[bytes], endpoint: str, *, listens: bool) -> str:
    """Returns what others may connect to."""
    try:
        if not listens:
            one.connect(endpoint)
            return endpoint
        one.bind(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(f"kv_events_config: {endpoint} cannot be had: {error}", param="kv_events_config") from error
    bound = one.get(zmq.LAST_ENDPOINT)
    assert isinstance(bound, bytes)
    transport, _, rest = bound.rstrip(b"\0").decode().partition("://")
    host, _, port = rest.rpartition(":")
    return f"tcp://{_own_address()}:{port}" if transport == "tcp" and host in _ANY else f"{transport}://{rest}"


def _own_address() -> str:
    """That by which this machine reaches others: of several, the one that others most likely reach it by."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("192.0.2.1", 9))  # of no machine, and nothing is sent
        except OSError:  # no network
            return "127.0.0.1"
        address: str = one.getsockname()[0]
        return address
