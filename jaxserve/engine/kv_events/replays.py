"""Replays of past batches: sent as fast as their reader takes them, so that one which does not read costs a bounded buffer."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import TypeAlias

import zmq

logger = logging.getLogger(__name__)

END = (-1).to_bytes(8, "big", signed=True)  # number of the last reply to a reader, which is no batch
NUMBER_BYTES = 8
HIGH_WATER_MARK = 64  # batches that ZeroMQ holds for one reader
MAX_READERS = 64  # replays under way
STALLED_SECONDS = 30.0  # without taking a batch, after which a reader is dropped
RETRY_MS = 20  # until a reader whose buffer was full is tried again

Kept: TypeAlias = deque[tuple[bytes, bytes]]
"""Numbers, ascending, and batches."""


class _Replay:
    """One reader's replay.

    Attributes:
        following: number of the first batch that the reader still gets; None once only the end is missing.
        again: number from which it asked for another replay meanwhile; the latest counts.
    """

    def __init__(self, first: bytes, now: float) -> None:
        self.following: bytes | None = first
        self.again: bytes | None = None
        self.moved = now


class Replays:
    """Replays under way.

    Args:
        send: sends frames to the reader that the first one names. Raises zmq.Again if its buffer is full, another ZMQError if
            it is gone.
        kept: batches to replay. What is dropped from it while a reader is slow is missing from its replay.
    """

    def __init__(self, send: Callable[[tuple[bytes, ...]], None], kept: Kept, now: Callable[[], float]) -> None:
        self._send = send
        self._kept = kept
        self._now = now
        self._replays: dict[bytes, _Replay] = {}

    def __bool__(self) -> bool:
        return bool(self._replays)

    def begin(self, reader: bytes, first: bytes) -> None:
        """Send the kept batches from this number on, after the replay that is under way for the reader."""
        under_way = self._replays.get(reader)
        if under_way is not None:
            under_way.again = first
        elif len(self._replays) >= MAX_READERS:
            logger.warning("refused a replay of KV events: %d are under way", MAX_READERS)
        else:
            self._replays[reader] = _Replay(first, self._now())

    def go_on(self) -> None:
        """Send every reader what it takes now."""
        for reader, replay in list(self._replays.items()):
            try:
                self._fill(reader, replay)
                del self._replays[reader]
            except zmq.Again:
                if self._now() - replay.moved > STALLED_SECONDS:
                    logger.warning("dropped a replay of KV events: its reader took nothing for %g s", STALLED_SECONDS)
                    del self._replays[reader]
            except zmq.ZMQError:  # the reader is gone
                del self._replays[reader]

    def _fill(self, reader: bytes, replay: _Replay) -> None:
        while True:
            if replay.following is not None:
                begin = bisect_left(self._kept, replay.following, key=lambda batch: batch[0])  # big-endian: bytes sort as numbers
                for number, payload in islice(self._kept, begin, None):
                    replay.following = number
                    self._send((reader, b"", number, payload))
                    replay.moved = self._now()
                replay.following = None
            self._send((reader, b"", END, b""))
            if replay.again is None:
                return
            replay.following, replay.again = replay.again, None


def replay_socket(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """A ROUTER that reports a full buffer or a reader that is gone, instead of dropping what is sent."""
    one = context.socket(zmq.ROUTER)
    one.set(zmq.SNDHWM, HIGH_WATER_MARK)
    one.set(zmq.ROUTER_MANDATORY, 1)
    return one
