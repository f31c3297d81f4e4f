"""Which numbers of devices divide a model, and an error that says what stands in the way and what would fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension that devices share.

    Attributes:
        name: what its owner calls it.
        size: how many indivisible parts it has.
        replicates: whether more devices than parts may hold each part several times.
    """

    name: str
    size: int
    replicates: bool = False

    def fits(self, devices: int) -> bool:
        """Whether every device gets the same number of whole parts."""
        return self.size % devices == 0 or (self.replicates and devices % self.size == 0)


def sizes_that_fit(dimensions: Sequence[Dimension]) -> list[int]:
    """All numbers of devices that fit every dimension, in order. At least one dimension must not replicate."""
    limit = min(dimension.size for dimension in dimensions if not dimension.replicates)
    return [devices for devices in range(1, limit + 1) if all(dimension.fits(devices) for dimension in dimensions)]


def require_division(dimensions: Sequence[Dimension], devices: int) -> None:
    """Check that every dimension can be shared by this many devices.

    Raises ValueError: names the dimensions that cannot, with their sizes, and the numbers of devices that fit all.
    """
    wrong = [f"{dimension.name} {dimension.size}" for dimension in dimensions if not dimension.fits(devices)]
    if wrong:
        fitting = ", ".join(map(str, sizes_that_fit(dimensions)))
        raise ValueError(f"{devices} does not divide {' and '.join(wrong)}; sizes that fit this model: {fitting}")
