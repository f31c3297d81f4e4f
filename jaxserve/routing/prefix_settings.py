"""PrefixSettings: what a PrefixRouter weighs against what."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from jaxserve.errors import ConfigError

_COUNTS = ("landmark_tokens", "first_landmarks", "most_landmarks", "most_sessions", "most_prefixes")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixSettings:
    """Token-work is `prefill_price` for each prompt token that must be computed plus `decode_price` for each output token.

    Attributes:
        slack: share above its part of all work that a replica may have before requests leave their home.
        grain: token-work that a replica of weight 1 may always have.
        yielding: share of lower classes' work that higher ones see.
        prefill_price, decode_price: of a token; the scheduler's defaults.
        landmark_tokens: of prompts, only the page after every so many tokens is looked at and remembered; prompts that share
            fewer are strangers.
        first_landmarks: what an unknown prompt is one of, while nothing is known of where such prompts go apart.
        least_share: of a prompt that must be known at a replica for it to be worth going there.
        most_landmarks: remembered, of all replicas together.
        most_sessions, most_prefixes: remembered.
        heat_seconds: that the traffic of prefixes is measured over.
    """

    slack: float = 0.25
    grain: float = 8192.0
    yielding: float = 0.25
    prefill_price: float = 1.0
    decode_price: float = 2.0
    landmark_tokens: int = 128
    first_landmarks: int = 4
    least_share: float = 0.125
    most_landmarks: int = 2**19
    most_sessions: int = 2**16
    most_prefixes: int = 2**14
    heat_seconds: float = 30.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not 0.0 <= value < math.inf:
                raise ConfigError(f"{item.name} must be at least 0 and finite, got {value}", param=item.name)
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}", param=name)
        for name in ("grain", "heat_seconds"):  # divisors
            if getattr(self, name) == 0.0:
                raise ConfigError(f"{name} must be above 0", param=name)
        for name in ("yielding", "least_share"):
            if getattr(self, name) > 1.0:
                raise ConfigError(f"{name} must be at most 1, got {getattr(self, name)}", param=name)


DEFAULT_PREFIX_SETTINGS = PrefixSettings()
