"""Which tokens of an output are of which version of the weights."""

from __future__ import annotations

from jaxserve.engine.events import WeightRange

UNNAMED = "default"


class WeightRanges:
    """Of one sequence, kept as its tokens come."""

    __slots__ = ("_starts",)

    def __init__(self) -> None:
        self._starts: list[tuple[int, int | str | None]] = []

    def add(self, index: int, version: int | str | None) -> None:
        """The token at an index is of a version."""
        if not self._starts or self._starts[-1][1] != version:
            self._starts.append((index, version))

    def ranges(self, num_tokens: int) -> tuple[WeightRange, ...] | None:
        """Those of all tokens; None if the weights never had a name."""
        if all(version is None for _, version in self._starts):
            return None
        ends = [start for start, _ in self._starts[1:]] + [num_tokens]
        return tuple(
            WeightRange(UNNAMED if version is None else version, start, end)
            for (start, version), end in zip(self._starts, ends, strict=True)
        )
