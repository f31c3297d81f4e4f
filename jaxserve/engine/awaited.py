"""Several things that are waited for, as one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any


def all_done(futures: Sequence[Future[Any]]) -> Future[Any] | None:
    """Done when all of them are, whatever comes of each; None if there are none."""
    if len(futures) < 2:
        return futures[0] if futures else None
    done: Future[Any] = Future()
    lock, left = threading.Lock(), len(futures)

    def ended(_: Future[Any]) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = left == 0
        if last:
            done.set_result(None)

    for future in futures:
        future.add_done_callback(ended)
    return done
