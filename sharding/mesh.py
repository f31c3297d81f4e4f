"""The device mesh: two named axes, `data` (replicas of the weights) and `tensor` (devices that share every layer)."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

DATA = "data"
TENSOR = "tensor"


def make_mesh(tensor: int, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Mesh of shape [1, tensor] over the first `tensor` devices.

    The axes are of type Auto: the compiler places the collectives that the parameters' shardings imply.

    Args:
        tensor: devices that share every layer.
        devices: devices to choose from, in order; all that jax sees by default.

    Raises:
        ValueError: `tensor` is below 1 or more than there are devices.
    """
    available = list(jax.devices() if devices is None else devices)
    if tensor < 1:
        raise ValueError(f"a mesh needs at least 1 device on axis {TENSOR!r}, got {tensor}")
    if tensor > len(available):
        raise ValueError(f"axis {TENSOR!r} of size {tensor} needs {tensor} devices, but there are {len(available)}")
    grid = np.array(available[:tensor]).reshape(1, tensor)
    return Mesh(grid, (DATA, TENSOR), axis_types=(AxisType.Auto, AxisType.Auto))
