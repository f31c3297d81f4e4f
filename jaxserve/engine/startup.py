"""Two long things at once while an engine starts: weights load while programs compile, which needs only their shapes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from jaxserve.executor.programs import CompileProgress
from jaxserve.jax_settings import pin_thread

Result = TypeVar("Result")
Other = TypeVar("Other")


@dataclass(frozen=True, slots=True)
class Timed(Generic[Result]):
    result: Result
    seconds: float


def both(
    here: Callable[[CompileProgress], Result], beside: Callable[[CompileProgress], Other], progress: CompileProgress
) -> tuple[Timed[Result], Timed[Other]]:
    """Run `here` in this thread and `beside` in another; return when both are done.

    Args:
        here: gets a progress to tell. Where it tells something after the other failed, it is ended by an exception.
        beside: likewise.
        progress: told what both tell, one call at a time. What it raises is a failure of the one that told it.

    Raises BaseException: what failed first, once the other has ended too.
    """
    shared = _Shared(progress)
    with ThreadPoolExecutor(1, thread_name_prefix="jaxserve-start", initializer=pin_thread) as pool:
        future = pool.submit(shared.run, beside)
        mine = shared.run(here)
        other = future.result()
    if shared.error is not None:
        raise shared.error
    assert mine is not None
    assert other is not None
    return mine, other


class _EndedError(Exception):
    """Ends one because the other failed."""


class _Shared:
    def __init__(self, progress: CompileProgress) -> None:
        self.error: BaseException | None = None
        self._progress = progress
        self._lock = threading.Lock()

    def run(self, work: Callable[[CompileProgress], Result]) -> Timed[Result] | None:
        started = time.monotonic()
        try:
            return Timed(work(self._tell), time.monotonic() - started)
        except BaseException as error:
            if self.error is None:
                self.error = error
            return None

    def _tell(self, what: str, done: int, total: int) -> None:
        with self._lock:
            if self.error is not None:
                raise _EndedError
            self._progress(what, done, total)
