"""Device meshes and the mapping from logical axes to mesh axes. Imports jax only."""

from sharding.mesh import DATA, TENSOR, make_mesh
from sharding.specs import LogicalAxes, named_sharding, partition_spec

__all__ = ["DATA", "TENSOR", "LogicalAxes", "make_mesh", "named_sharding", "partition_spec"]
