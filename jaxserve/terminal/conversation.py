"""A conversation and how to go on with it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from jaxserve.config.check import check_types
from jaxserve.config.fields import setting
from jaxserve.errors import ConfigError
from jaxserve.types import ChatMessage, text_of


@dataclass(slots=True, kw_only=True)
class Sampling:
    """How answers are sampled; None leaves it to the model's server."""

    temperature: float | None = setting(None, "0 for the likeliest token always; 1 by default")
    top_p: float | None = setting(None, "share of probability that tokens are chosen from; 1 by default")
    max_tokens: int | None = setting(None, "tokens of an answer at most; what the context holds by default")
    seed: int | None = setting(None, "for answers that can be repeated")

    def __post_init__(self) -> None:
        check_types(self)

    def given(self) -> dict[str, Any]:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def set(self, name: str, text: str) -> None:
        """Change one from text; "none" is None. Raises ConfigError naming it."""
        kinds: dict[str, type[int] | type[float]] = {"temperature": float, "top_p": float, "max_tokens": int, "seed": int}
        if name not in kinds:
            raise ConfigError(f"{name!r} is none of {', '.join(kinds)}", param=name)
        try:
            value = None if text == "none" else kinds[name](text)
        except ValueError as error:
            raise ConfigError(f"{name} must be a number or none, got {text!r}", param=name) from error
        if value is not None and not math.isfinite(value):
            raise ConfigError(f"{name} must be finite, got {text}", param=name)
        setattr(self, name, value)


@dataclass(slots=True)
class Conversation:
    """Turns so far.

    Attributes:
        system: what the model is told first; empty for nothing.
        turns: the user's and the assistant's, in order.
    """

    system: str = ""
    turns: list[ChatMessage] = field(default_factory=list)

    def messages(self) -> list[ChatMessage]:
        first: list[ChatMessage] = [{"role": "system", "content": self.system}] if self.system else []
        return first + self.turns

    def ask(self, text: str) -> None:
        self.turns.append({"role": "user", "content": text})

    def answered(self, text: str) -> None:
        self.turns.append({"role": "assistant", "content": text})

    def take_back(self) -> str | None:
        """Forget the last question and what came after it. Returns the question, None if there is none."""
        while self.turns:
            turn = self.turns.pop()
            if turn["role"] == "user":
                return text_of(turn)
        return None

    def clear(self) -> None:
        self.turns.clear()
