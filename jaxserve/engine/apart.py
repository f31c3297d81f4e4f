"""Work that a call to an engine does outside of the engine's thread, which turns meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Made = TypeVar("Made")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Apart(Generic[Made, Result]):
    """What takes long and touches no engine, and what the engine's thread then does with what it made.

    Attributes:
        work: called in a thread of its own; what it raises is the call's answer.
        then: called between two turns; it may return a future. None where what `work` made is the answer.
    """

    work: Callable[[], Made]
    then: Callable[[Made], Result] | None
