"""Logical axes: an array names what its dimensions mean, and one table says which mesh axis divides each meaning."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sharding.mesh import EXPERT, LAYER_AXES, TENSOR

LogicalAxes = tuple[str | None, ...]
"""One name a dimension; None for a dimension that is never divided."""

MESH_AXES: Mapping[str, str | tuple[str, ...] | None] = MappingProxyType(
    {
        "embed": None,
        "head_dim": None,
        "heads": LAYER_AXES,  # query heads, and the shard dimension of packed attention projections: whole heads on each device
        "kv_heads": LAYER_AXES,  # of keys, values and their cache; with fewer heads than devices the dimension repeats each head
        "ffn": LAYER_AXES,  # the shard dimension of packed MLP projections
        "vocab": LAYER_AXES,  # of tables, logits and the sampler's state, padded to a multiple of the devices
        "experts": EXPERT,  # whole experts
        "expert_ffn": TENSOR,  # the shard dimension of their projections: neighbouring shards on the devices of an expert
        "layers": None,
        "pages": None,
        "page_size": None,
        "tokens": None,  # a step's inputs: every device of an axis that shares layers sees all of them
        "rows": None,
        "slots": None,
    }
)

KV_PAGES_AXES: LogicalAxes = ("layers", "pages", None, "kv_heads", "page_size", "head_dim")
"""The KV cache [L, P, 2, K, S, D], or [L, P, 1, K, S, D] of latents; L are the layers of one group."""


def partition_spec(axes: LogicalAxes) -> PartitionSpec:
    """PartitionSpec of an array whose dimensions have these logical axes.

    Raises ValueError: an axis name that the table does not know.
    """
    unknown = [axis for axis in axes if axis is not None and axis not in MESH_AXES]
    if unknown:
        raise ValueError(f"unknown logical axes {unknown}; known are {sorted(MESH_AXES)}")
    names = [None if axis is None else MESH_AXES[axis] for axis in axes]
    return PartitionSpec(*names)  # type: ignore[no-untyped-call]


def named_sharding(mesh: Mesh, axes: LogicalAxes) -> NamedSharding:
    """The sharding on `mesh` of an array whose dimensions have these logical axes."""
    return NamedSharding(mesh, partition_spec(axes))
