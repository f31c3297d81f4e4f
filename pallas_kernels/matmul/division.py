"""How a parameter is divided over devices each of which multiplies by its own part."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from jax.sharding import AbstractMesh, PartitionSpec


@dataclass(frozen=True, slots=True)
class Division:
    """See above; it is divided by the first of its inputs or the first of its outputs.

    Attributes:
        mesh: the devices. Without naming any, so that a saved program says the same.
        spec: the parameter's, an item for each dimension.
    """

    mesh: AbstractMesh
    spec: PartitionSpec

    def part_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """What a device has of a parameter of this shape."""
        return tuple(size // self._devices(axes) for size, axes in zip(shape, self.spec, strict=True))

    def _devices(self, axes: str | tuple[str, ...] | None) -> int:
        names = (axes,) if isinstance(axes, str) else axes or ()
        return prod(self.mesh.shape[name] for name in names)
