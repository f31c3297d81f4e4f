"""Events of a response that is read: what its tokens add to the message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxserve.chat_parsing import Delta as Part
from jaxserve.engine.events import Delta, Finished


@dataclass(frozen=True, slots=True)
class ReadDelta(Delta):
    """New tokens, and what they add to the message.

    Attributes:
        parts: may be none while the beginning of a marker is held back.
        reasoning_tokens: how many of the tokens are thinking.
    """

    parts: Sequence[Part] = ()
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ReadFinished(Finished):
    """The end of a sequence; `called`: with calls that are whole."""

    called: bool = False
