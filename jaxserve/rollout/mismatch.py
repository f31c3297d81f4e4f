"""How far an engine's log-probabilities of its own samples are from a trainer's of the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Pair = tuple[npt.ArrayLike, npt.ArrayLike]
"""Of one sampled sequence, from its first sampled token on: the engine's log-probabilities and the trainer's."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Differences d = trainer - engine over sampled tokens.

    Attributes:
        tokens: how many.
        max_abs, mean_abs: of d.
        k1, k3: estimates of KL(engine || trainer) from the engine's samples: the means of -d, which may be below 0, and of
            exp(d) - 1 - d, which is not (Schulman, Approximating KL Divergence, 2020).
    """

    tokens: int
    max_abs: float
    mean_abs: float
    k1: float
    k3: float

    @classmethod
    def of(cls, engine: npt.ArrayLike, trainer: npt.ArrayLike) -> Mismatch:
        """Of as many numbers from each, at least one."""
        difference = np.asarray(trainer, np.float64) - np.asarray(engine, np.float64)
        return cls(
            tokens=difference.size,
            max_abs=float(np.abs(difference).max()),
            mean_abs=float(np.abs(difference).mean()),
            k1=float(-difference.mean()),
            k3=float((np.expm1(difference) - difference).mean()),
        )


def by_position(pairs: Sequence[Pair], width: int) -> dict[str, Mismatch]:
    """The mismatch of sampled tokens 0 to width - 1 of all sequences, of the next `width`, and so on, by "first-last"."""
    sequences = [np.stack([np.asarray(one, np.float64) for one in pair]) for pair in pairs]
    longest = max(sequence.shape[1] for sequence in sequences)
    parts = {}
    for first in range(0, longest, width):
        part = np.concatenate([sequence[:, first : first + width] for sequence in sequences], axis=1)
        parts[f"{first}-{min(first + width, longest) - 1}"] = Mismatch.of(*part)
    return parts


def overall(pairs: Sequence[Pair]) -> Mismatch:
    """The mismatch of all sampled tokens."""
    return Mismatch.of(*(np.concatenate([np.asarray(pair[side], np.float64) for pair in pairs]) for side in (0, 1)))
