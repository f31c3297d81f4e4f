"""A neighbour that has a core busy 7 seconds of every 20 while its parent lives: `python -m benchmarks.load.neighbour 20 7`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_ROUNDS = 20_000  # of work between two looks at the clock
_LONGEST_SLEEP = 0.5


def burn(cycle: float, busy: float) -> None:
    """Work and rest in turns until the parent is gone."""
    parent, begin = os.getppid(), time.monotonic()
    while os.getppid() == parent:
        place = (time.monotonic() - begin) % cycle
        if place < busy:
            sum(number * number for number in range(_ROUNDS))
        else:
            time.sleep(min(cycle - place, _LONGEST_SLEEP))


@contextmanager
def neighbour(cores: int, cycle: float, busy: float) -> Iterator[None]:
    """So many of them, ended at the end."""
    command = [sys.executable, "-m", "benchmarks.load.neighbour", str(cycle), str(busy)]
    processes = [subprocess.Popen(command) for _ in range(cores)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        burn(*map(float, sys.argv[1:]))
