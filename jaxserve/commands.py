"""What commands that answer a question share: rates, a wide enough table, figures as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from jaxserve.errors import ConfigError


class Throughput:
    """How fast goes what is counted in megabytes, as the name of what is done says."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began: dict[str, tuple[float, int]] = {}

    def said(self, what: str, done: int) -> str:
        began, before = self._began.setdefault(what, (self._now(), done))
        seconds = self._now() - began
        return f"{(done - before) / 1000 / seconds:.2f} GB/s" if what.endswith(", MB") and done > before and seconds > 0 else ""


def wide_console(width: int) -> Console:
    """A console at least as wide as the widest table: cut-off numbers are worse than wrapped lines, and a pipe has no width."""
    console = Console(highlight=False)
    console.width = max(console.width, width) if console.is_terminal else width
    return console


def write_json(path: Path, figures: Any) -> None:
    """Write figures to a file. Raises ConfigError if that cannot be done."""
    try:
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", param="json") from error
