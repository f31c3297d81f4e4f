"""The device mesh: four named axes, of which any may have size 1."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

DATA = "data"
"""Replicas of the weights."""
TENSOR = "tensor"
"""Devices that share every expert of theirs: its columns."""
EXPERT = "expert"
"""Devices that share the experts of a layer: each has whole ones, or the same part of them."""
LAYER_AXES = (EXPERT, TENSOR)
"""Devices that share every layer: its heads, its MLP columns, the vocabulary."""
SEQUENCE = "sequence"
"""Devices that share the tokens of a sequence."""


def shards_of(mesh: Mesh) -> int:
    """How many devices share every layer."""
    return math.prod(mesh.shape[axis] for axis in LAYER_AXES)


def make_mesh(
    tensor: int = 1, devices: Sequence[jax.Device] | None = None, *, data: int = 1, expert: int = 1, sequence: int = 1
) -> Mesh:
    """Mesh of shape [data, sequence, expert, tensor] over the first devices.

    Tensor parallelism exchanges the most, so its devices are next to each other. The axes are of type Auto: the compiler
    places the collectives that the parameters' shardings imply.

    Args:
        tensor: size of axis TENSOR.
        devices: devices to choose from, in order; all that jax sees by default.
        data: size of axis DATA.
        expert: size of axis EXPERT.
        sequence: size of axis SEQUENCE.

    Raises ValueError: a size is below 1, or the axes need more devices than there are.
    """
    available = list(jax.devices() if devices is None else devices)
    sizes = {DATA: data, SEQUENCE: sequence, EXPERT: expert, TENSOR: tensor}
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"a mesh needs at least 1 device on axis {name!r}, got {size}")
    needed = math.prod(sizes.values())
    if needed > len(available):
        axes = " and ".join(f"axis {name!r} of size {size}" for name, size in sizes.items() if size > 1)
        raise ValueError(f"{axes} needs {needed} devices, but there are {len(available)}")
    grid = np.array(available[:needed]).reshape(tuple(sizes.values()))
    return Mesh(grid, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))
