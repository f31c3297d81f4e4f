"""Notices compilations inside a step. There should be none once the engine is ready: a compilation holds every request up."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import jax

logger = logging.getLogger(__name__)

COMPILED = "/jax/core/compile/backend_compile_duration"  # jax records it for each program it compiles or takes from its cache


class LateCompileError(RuntimeError):
    """A step compiled something, and the guard is strict."""


class CompileGuard:
    """Counts the programs that a thread compiles within `watch`; other threads, which may compile on purpose, do not count.

    Attributes:
        compiles: how many so far.

    Args:
        strict: raise LateCompileError after a step that compiled, where the log would get a warning.
    """

    def __init__(self, *, strict: bool) -> None:
        self.compiles = 0
        self._strict = strict
        self._thread = threading.local()
        method = weakref.WeakMethod(self._hear)

        def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
            hear = method()
            if event == COMPILED and hear is not None:
                hear(str(kwargs.get("fun_name", "a program")))

        jax.monitoring.register_event_duration_secs_listener(listen)
        weakref.finalize(self, jax.monitoring.unregister_event_duration_listener, listen)

    @contextmanager
    def watch(self, what: str) -> Iterator[None]:
        """Watch this thread; `what` says what it does. Raises LateCompileError if strict."""
        heard: list[str] = []
        self._thread.heard = heard
        yield
        if not heard:
            return
        self.compiles += len(heard)
        message = f"{what} compiled {', '.join(heard)} after the engine was ready"
        if self._strict:
            raise LateCompileError(message)
        logger.warning("%s", message)

    def _hear(self, name: str) -> None:
        """Note it for the thread's last `watch`, which looks when it ends; what comes later is nobody's."""
        heard: list[str] | None = getattr(self._thread, "heard", None)
        if heard is not None:
            heard.append(name)
