"""Keys as they are pressed, without Enter."""

from __future__ import annotations

import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Wait = Callable[[float], str]
"""Waits so many seconds for a key. Returns what was pressed, or "" if nothing was."""


@contextmanager
def single_keys() -> Iterator[Wait]:
    """The keys of the terminal at stdin, which is as it was afterwards; where stdin is none, nobody presses any."""
    if not sys.stdin.isatty():
        yield _nobody
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def wait(seconds: float) -> str:
        return sys.stdin.read(1) if select.select([descriptor], (), (), seconds)[0] else ""

    try:
        tty.setcbreak(descriptor)
        yield wait
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _nobody(seconds: float) -> str:
    time.sleep(seconds)
    return ""
