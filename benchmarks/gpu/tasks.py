"""What a section consists of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.sizes import Sizes

Figure = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """One measurement.

    Attributes:
        labels: what is measured, part of its figure.
        measure: measures it; whatever it raises becomes the figure's error.
    """

    labels: Figure
    measure: Callable[[], Figure]


Section = Callable[[Sizes], Iterator[Task]]
"""Yields its tasks one after another; work between them is not guarded."""
