"""Logical axes: a parameter names what its dimensions mean, and one table says which mesh axis divides each meaning."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sharding.mesh import TENSOR

LogicalAxes = tuple[str | None, ...]
"""One name a dimension; None for a dimension that is never divided."""

MESH_AXES: Mapping[str, str | None] = MappingProxyType(
    {
        "embed": None,
        "head_dim": None,
        "heads": TENSOR,  # the shard dimension of packed attention projections: each device holds whole heads
        "ffn": TENSOR,  # the shard dimension of packed MLP projections
        "vocab": TENSOR,
    }
)


def partition_spec(axes: LogicalAxes) -> PartitionSpec:
    """PartitionSpec of an array whose dimensions have these logical axes.

    Raises:
        ValueError: an axis name that the table does not know.
    """
    unknown = [axis for axis in axes if axis is not None and axis not in MESH_AXES]
    if unknown:
        raise ValueError(f"unknown logical axes {unknown}; known are {sorted(MESH_AXES)}")
    names = [None if axis is None else MESH_AXES[axis] for axis in axes]
    return PartitionSpec(*names)  # type: ignore[no-untyped-call]


def named_sharding(mesh: Mesh, axes: LogicalAxes) -> NamedSharding:
    """The sharding on `mesh` of an array whose dimensions have these logical axes."""
    return NamedSharding(mesh, partition_spec(axes))
