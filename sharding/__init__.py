"""Device meshes, the mapping from logical axes to mesh axes, and what divides a model. Imports jax only."""

from sharding.division import Dimension, require_division, sizes_that_fit
from sharding.mesh import DATA, EXPERT, LAYER_AXES, SEQUENCE, TENSOR, make_mesh, shards_of
from sharding.specs import KV_PAGES_AXES, LogicalAxes, named_sharding, partition_spec

__all__ = [
    "DATA",
    "EXPERT",
    "KV_PAGES_AXES",
    "LAYER_AXES",
    "SEQUENCE",
    "TENSOR",
    "Dimension",
    "LogicalAxes",
    "make_mesh",
    "named_sharding",
    "partition_spec",
    "require_division",
    "shards_of",
    "sizes_that_fit",
]
