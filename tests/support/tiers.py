"""Tiers of parametrized tests: a core that every change runs, and the rest, which `make test-all` runs."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Any

import pytest


def tiered(cases: Iterable[Hashable], core: Collection[Hashable]) -> list[Any]:
    """Mark the cases outside of `core` as extended. Raises ValueError for a core case that is no case."""
    every = list(cases)
    if missing := [case for case in core if case not in every]:
        raise ValueError(f"core cases that do not exist: {missing}")
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=() if case in core else pytest.mark.extended)
        for case in every
    ]
