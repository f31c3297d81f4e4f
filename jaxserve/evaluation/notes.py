"""What an evaluation warns of, each kind once: the same is said of every prompt that is too long."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

_LOGGER = "jaxserve.evaluation"


@dataclass(slots=True)
class Notes:
    """Warnings by their text before numbers are filled in: the first of each, and how many there were."""

    first: dict[str, str] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)

    def add(self, record: logging.LogRecord) -> None:
        kind = str(record.msg)
        self.first.setdefault(kind, record.getMessage())
        self.count[kind] = self.count.get(kind, 0) + 1

    def lines(self) -> list[str]:
        return [text + (f" ({self.count[kind]} times)" if self.count[kind] > 1 else "") for kind, text in self.first.items()]


class _Listener(logging.Handler):
    def __init__(self, notes: Notes) -> None:
        super().__init__(logging.WARNING)
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        self._notes.add(record)


@contextlib.contextmanager
def heard() -> Iterator[Notes]:
    """Hear what is warned of inside, instead of printing it."""
    notes, logger = Notes(), logging.getLogger(_LOGGER)
    listener, spread = _Listener(notes), logger.propagate
    logger.addHandler(listener)
    logger.propagate = False
    try:
        yield notes
    finally:
        logger.removeHandler(listener)
        logger.propagate = spread
