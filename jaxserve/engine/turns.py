"""Lets any thread have something done between two turns of an engine that another one drives."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

Result = TypeVar("Result")

_LOOK_SECONDS = 0.02  # between two looks of who waits, at whether the driver has gone


class Turns:
    """Whose thread drives an engine, and what others want done between two of its turns."""

    def __init__(self) -> None:
        self._driving = threading.RLock()
        self._driver: int | None = None
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()

    @property
    def are_mine(self) -> bool:
        """Whether this thread drives the engine now: it must not wait for a turn."""
        return self._driver == threading.get_ident()

    @contextmanager
    def driven(self) -> Iterator[None]:
        """Drive the engine meanwhile; waits for whoever does now."""
        with self._driving:
            before, self._driver = self._driver, threading.get_ident()
            try:
                yield
                self.serve()
            finally:
                self._driver = before

    def serve(self) -> None:
        """Do what others asked for: between two turns."""
        while not self._calls.empty():
            function, done = self._calls.get()
            try:
                done.set_result(function())
            except Exception as error:
                done.set_exception(error)

    def call(self, function: Callable[[], Result]) -> Result:
        """Run a function while nobody drives, or between two turns of who does."""
        done: Future[Result] = Future()
        self._calls.put((function, done))
        while not done.done():
            if self._driving.acquire(blocking=False):
                try:
                    self.serve()
                finally:
                    self._driving.release()
            else:
                wait([done], timeout=_LOOK_SECONDS)
        return done.result()
