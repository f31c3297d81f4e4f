"""Ctrl-C between turns of the engine, never inside one: a step that is half submitted has donated its buffers already."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class HeldInterrupts:
    """While entered in the main thread, SIGINT waits for `release`, which then raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._pending = False
        self._previous: signal.Handlers | object | None = None

    def __enter__(self) -> HeldInterrupts:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._hold)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)  # type: ignore[arg-type]

    def release(self) -> None:
        """Raise KeyboardInterrupt if one arrived since the last call."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self._pending = True
