"""The static options of ragged_paged_attention: made once by a model's layer, passed unchanged to every implementation."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """What is computed besides plain attention; hashable, so that it can be a static argument of jit. None is for without.

    An implementation reads the options that `implementations.py` lists for it, and is refused a call with others; what `chunk`
    asks for `api.py` makes of the call before.

    Attributes:
        scale: multiplies the scores.
        window: a token attends to this many keys at most, the latest ones, itself included; None for all.
        soft_cap: scores become soft_cap * tanh(score / soft_cap), after `scale`.
        chunk: a token attends to the keys of its own chunk of so many positions, up to itself; None for all.
        value_dim: a key's value is its first so many numbers (the latents of DeepSeek-AI 2024); None for values of their own.

    Raises:
        ValueError: a window below 1, a soft_cap that is not above 0, a chunk below 1 or beside a window.
    """

    scale: float
    window: int | None = None
    soft_cap: float | None = None
    value_dim: int | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"window must be at least 1, got {self.window}")
        if self.soft_cap is not None and not self.soft_cap > 0.0:
            raise ValueError(f"soft_cap must be above 0, got {self.soft_cap}")
        if self.chunk is not None and (self.chunk < 1 or self.window is not None):
            raise ValueError(f"chunk must be at least 1, and goes with no window, got {self.chunk} and window={self.window}")

    @property
    def asked(self) -> tuple[str, ...]:
        """Names of the options that are not None, in order; without `scale`, which every implementation reads."""
        return tuple(field.name for field in fields(self) if field.name != "scale" and getattr(self, field.name) is not None)
