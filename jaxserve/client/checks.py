"""Numbers that settings may have."""

from __future__ import annotations

import math


def finite(name: str, value: float, *, at_least: float) -> float:
    """The value. Raises ValueError for one that is none, not finite, or too small."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < at_least:
        raise ValueError(f"{name} must be a finite number, at least {at_least:g}, got {value!r}")
    return value
