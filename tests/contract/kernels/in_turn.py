"""Which dtypes of a case `make test` runs: not each case's every dtype, but each dtype with many cases."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest


def in_turn(
    cases: Sequence[Any], turns: Sequence[str], *, every: Sequence[str] = (), everywhere: Collection[str] = (), first: int = 0
) -> list[Any]:
    """Pairs of a dtype and a case, for ("dtype", "case"): the first case is in the dtype numbered `first`, the next in the next.

    Args:
        cases: have names.
        turns: dtypes that take turns.
        every: all dtypes that there are, if `turns` has not all of them.
        everywhere: names of cases that `make test` runs in every dtype.
        first: where the turns begin, so that two tests of the same cases need not have the same dtypes.

    Returns:
        All pairs; those outside of the turns are extended.
    """
    names = {case.name for case in cases}
    assert names.issuperset(everywhere), f"no cases: {set(everywhere) - names}"
    return [
        pytest.param(
            dtype,
            case,
            id=f"{dtype}-{case.name}",
            marks=() if case.name in everywhere or dtype == turns[(first + index) % len(turns)] else pytest.mark.extended,
        )
        for dtype in every or turns
        for index, case in enumerate(cases)
    ]
