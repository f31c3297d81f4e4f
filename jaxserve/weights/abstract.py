"""The parameters of a decoder as shapes on a mesh: what programs are compiled from, and what says how much memory they take."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxserve.models.binding import Params, abstract_params, param_shardings
from jaxserve.models.config import DecoderConfig
from jaxserve.models.shards import require_expert_groups
from sharding import EXPERT, shards_of


def placed_params(config: DecoderConfig, mesh: Mesh, dtype: DTypeLike) -> Params:
    """The parameter tree with a jax.ShapeDtypeStruct at every leaf, which says its sharding. Allocates nothing.

    Raises ConfigError: a decoder that cannot be divided over the mesh.
    """
    require_expert_groups(config, shards_of(mesh), mesh.shape[EXPERT])
    shardings = param_shardings(config, mesh)

    def place(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=shardings[tuple(str(key.key) for key in path)])

    params: Params = jax.tree.map_with_path(place, abstract_params(config, dtype, shards_of(mesh)))
    return params
