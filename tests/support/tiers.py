"""Tiers of parametrized tests: a core that every change runs, and the rest, which `make test-all` runs."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Any

import pytest


def tiered(cases: Iterable[Hashable], core: Collection[Hashable]) -> list[Any]:
    """Mark the cases outside of `core` as extended. Raises ValueError for a core case that does not exist."""
    every = list(cases)
    if missing := [case for case in core if case not in every]:
        raise ValueError(f"core cases that do not exist: {missing}")
    return [_param(case, case in core) for case in every]


def sampled(cases: Iterable[Any], step: int) -> list[Any]:
    """Mark all cases as extended but every `step`-th, beginning with the first."""
    return [_param(case, index % step == 0) for index, case in enumerate(cases)]


def _param(case: Any, core: bool) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=() if core else pytest.mark.extended)
