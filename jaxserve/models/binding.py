"""Parameters are a plain nested dict of arrays; this turns one into a decoder inside a jitted function.

A jitted call costs host time for every leaf, and much more for an NNX module or state than for a dict, so the dict is
what crosses the boundary; the module exists while the function is traced.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike

from jaxserve.models.adapted import StepAdapters, adapt
from jaxserve.models.config import DecoderConfig
from jaxserve.models.decoder import Decoder
from jaxserve.models.encoder.model import Encoder
from jaxserve.models.parameter import Product
from jaxserve.models.shards import require_shards
from pallas_kernels.matmul import counted
from sharding import LogicalAxes, named_sharding

Params = dict[str, Any]
"""Nested dict of arrays: params["layers"]["0"]["attention"]["qkv"] and so on."""


Model = Decoder | Encoder


class UsedRows(NamedTuple):
    """How many tokens of a padded step and rows of its logits are real, int32 scalars: the first ones."""

    tokens: jax.Array
    logits: jax.Array


def bind(config: DecoderConfig, params: Params, used: UsedRows | None = None, adapters: StepAdapters | None = None) -> Decoder:
    """`bind_model`, of a decoder."""
    model = bind_model(config, params, used, adapters)
    assert isinstance(model, Decoder), "no encoder"
    return model


def bind_model(
    config: DecoderConfig, params: Params, used: UsedRows | None = None, adapters: StepAdapters | None = None
) -> Model:
    """The model with these parameters; cheap enough to call in every traced function.

    Args:
        config: what the parameters belong to.
        params: arrays (or tracers) in the tree of `abstract_params`.
        used: what products need to compute; None for everything. Where kernels skip padding (`weights.packed`), it then costs
            next to nothing, and its activations and logits are finite; others do not look at it.
        adapters: beside its projections; None for none.
    """
    if used is not None:
        rows = dict.fromkeys(("layers", "entry", "inputs"), used.tokens)
        params = {part: counted(tree, rows.get(part, used.logits)) for part, tree in params.items()}
    shards, dtype = params["layers"]["0"]["attention"]["out"].shape[0], params["embedding"]["table"].dtype  # never quantized
    if adapters is not None:
        params = adapt(params, adapters)
    graphdef, _ = _split_skeleton(config, shards, dtype.name)
    return nnx.merge(graphdef, params)


def abstract_params(config: DecoderConfig, dtype: DTypeLike, shards: int = 1) -> Params:
    """The parameter tree with a jax.ShapeDtypeStruct at every leaf. Allocates nothing.

    Args:
        config: the decoder.
        dtype: of the parameters.
        shards: tensor-parallel devices that projections are packed for.

    Raises ConfigError: heads or MLP columns cannot be divided evenly over the shards.
    """
    _, state = _split_skeleton(config, shards, jnp.dtype(dtype).name)
    return dict(nnx.to_pure_dict(state))


def param_axes(config: DecoderConfig) -> dict[tuple[str, ...], LogicalAxes]:
    """The logical axes of every parameter, by path, as its module declares them."""
    _, state = _split_skeleton(config, 1, "float32")
    return {tuple(map(str, path)): variable.get_metadata("axes") for path, variable in nnx.to_flat_state(state)}


def param_products(config: DecoderConfig) -> dict[tuple[str, ...], Product]:
    """How parameters are matrices of products, by path, as their modules declare it; others are left out."""
    _, state = _split_skeleton(config, 1, "float32")
    products = {tuple(map(str, path)): variable.get_metadata("product") for path, variable in nnx.to_flat_state(state)}
    return {path: product for path, product in products.items() if product is not None}


def rounded_products(config: DecoderConfig) -> dict[tuple[str, ...], Product]:
    """Of these the matrices that may be rounded one by one."""
    return {path: product for path, product in param_products(config).items() if not (product.stacked or product.exact)}


def param_shardings(config: DecoderConfig, mesh: Mesh) -> dict[tuple[str, ...], NamedSharding]:
    """The sharding of every parameter on a mesh, by path."""
    return {path: named_sharding(mesh, axes) for path, axes in param_axes(config).items()}


@lru_cache(maxsize=8)
def _split_skeleton(config: DecoderConfig, shards: int, dtype: str) -> tuple[nnx.GraphDef[Model], nnx.State[Any, Any]]:
    require_shards(config, shards)
    kind = Decoder if config.encoder is None else Encoder
    skeleton = nnx.eval_shape(lambda: kind(config, shards, jnp.dtype(dtype)))
    graphdef, state = nnx.split(skeleton)
    return graphdef, state
