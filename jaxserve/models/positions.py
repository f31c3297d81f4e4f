"""What a decoder knows of positions: how queries and keys are rotated by them, and how queries grow with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding, with every default already filled in.

    Attributes:
        kind: how the frequencies are scaled; "dynamic" is unscaled up to the model's `max_position_embeddings`, which
            is the longest sequence that jaxserve serves of it.
        theta: base of the frequencies.
        factor: context extension factor of "linear", "llama3", "yarn" and "proportional".
        original_max_position_embeddings: context length of pretraining ("llama3", "yarn", "longrope").
        low_freq_factor, high_freq_factor: bounds of the smoothed band ("llama3").
        beta_fast, beta_slow: rotations that bound the interpolated band ("yarn").
        truncate: whether the band's bounds are rounded outwards to whole dimensions ("yarn").
        attention_factor: multiplies cosine and sine ("yarn", "longrope").
        rotated_dims: how many dimensions of a head are rotated, its first ones; None for all. Of "proportional" it is the
            first pairs that a rotation of all of them would have, each at the frequency that it would have there.
        short_factors, long_factors: what each frequency is divided by in sequences that fit the context of pretraining, and
            in a model that serves longer ones ("longrope").
        extended: whether the long factors are in use ("longrope"): all sequences of an engine use the same, since a cached
            key cannot be rotated again.
        interleaved: whether neighbouring dimensions are a pair, instead of those half the rotated ones apart.
    """

    kind: RopeKind = "default"
    theta: float = 10000.0
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    rotated_dims: int | None = None
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    extended: bool = False
    interleaved: bool = False

    def serving(self, length: int) -> RopeConfig:
        """The same for an engine whose sequences are no longer than `length`."""
        if self.kind != "longrope":
            return self
        return replace(self, extended=length > self.original_max_position_embeddings)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryScale:
    """Queries are scaled with their position p where a context is long (Llama 4, 2025): times 1 + beta ln(1 + floor(p / period)).

    Attributes:
        beta: how much.
        period: positions; the first ones, so many, are not scaled.
        first: the number of the first position.
        unrotated: only in layers that know no positions otherwise.
    """

    beta: float
    period: int
    first: int = 0
    unrotated: bool = False
