"""How many drafts each row of a step gets.

The step with the most tokens a second is looked for: rows choose a token each, and one more for every draft that is right with
all before it. The likeliest draft of all rows is added first, then the next one, and of all these steps the best is taken. (With
chances that fall along a row, no other step of as many drafts expects more.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

WORTH = 1.02  # times the tokens a second of a step without drafts: less is noise


def fastest(
    chances: Sequence[Sequence[float]],
    rows: int,
    seconds: Callable[[int], float],
    *,
    room: int,
    gap: float = 0.0,
    limit: float = 0.0,
) -> list[int]:
    """Drafts of each row.

    Args:
        chances: of each row that may have drafts, that its first draft is right, its first two are, and so on.
        rows: of the step, those without drafts included.
        seconds: that it takes with so many drafts; 0 if that is not known. Where steps with drafts are known and those without
            are not, there are none, so that they will be.
        room: drafts in all, at most.
        gap: seconds that a step with any takes besides.
        limit: seconds of a step with drafts, at most; 0 for any.
    """
    heads = likeliest(chances, room)
    alone = seconds(0)
    if not alone and seconds(len(heads)):  # what it would take without drafts must be known before any can be worth it
        return [0] * len(chances)
    best, taken, expected = rows / alone * WORTH if alone else 0.0, 0, float(rows)
    for count, (chance, _) in enumerate(heads, 1):
        expected += chance
        takes = seconds(count)
        if limit and takes > max(limit, alone):
            break
        if not alone or expected > best * (takes + gap):
            taken = count
            best = expected / (takes + gap) if takes + gap else 0.0
    return counted(heads[:taken], len(chances))


def likeliest(chances: Sequence[Sequence[float]], room: int) -> list[tuple[float, int]]:
    """The chance and the row of so many drafts, the likeliest first."""
    heads = sorted(((-chance, row) for row, each in enumerate(chances) for chance in each))
    return [(-chance, row) for chance, row in heads[: max(room, 0)]]


def counted(heads: Sequence[tuple[float, int]], rows: int) -> list[int]:
    """How many there are of each row."""
    counts = [0] * rows
    for _, row in heads:
        counts[row] += 1
    return counts
