"""Which parameters are held packed for native kernels, and the packing.

The decoder and the checkpoint know plain parameters; programs are made for, and run on, what this makes of them.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxserve.models.binding import Params, param_products
from jaxserve.models.config import DecoderConfig
from jaxserve.models.parameter import Product
from pallas_kernels.matmul import PackedMatrix, why_plain
from pallas_kernels.matmul.packed import pack, packed_shape
from pallas_kernels.registry import Target


class Packer:
    """Packs the parameters that are matrices of products, where that is better for the device.

    On several devices, and on those without native kernels, every parameter stays as it is.

    Args:
        config: the decoder.
        mesh: the devices.
    """

    def __init__(self, config: DecoderConfig, mesh: Mesh) -> None:
        self._target = Target.of(mesh.devices.flat[0])
        self._products = param_products(config) if mesh.devices.size == 1 else {}
        self._placed = NamedSharding(mesh, PartitionSpec())

    def pack(self, path: tuple[str, ...], parameter: jax.Array) -> jax.Array | PackedMatrix:
        """A parameter as it is to be held."""
        product = self._product(path, parameter)
        return parameter if product is None else pack(parameter, product.split, product.form)

    def shape(self, path: tuple[str, ...], leaf: Any) -> Any:
        """What `pack` makes of a parameter of which only shape and dtype are known: with a jax.ShapeDtypeStruct for the array."""
        product = self._product(path, leaf)
        return leaf if product is None else packed_shape(leaf, *product, self._placed)

    def shapes(self, params: Params) -> Params:
        """What `pack` makes of every leaf of `placed_params`."""
        packed: Params = jax.tree.map_with_path(lambda keys, leaf: self.shape(tuple(str(key.key) for key in keys), leaf), params)
        return packed

    def _product(self, path: tuple[str, ...], leaf: Any) -> Product | None:
        product = self._products.get(path)
        return None if product is None or why_plain(leaf.dtype, self._target) is not None else product
