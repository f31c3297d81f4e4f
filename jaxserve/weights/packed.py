"""Which parameters are held packed for native kernels, which of them quantized, and the packing.

The decoder and the checkpoint know plain parameters; programs are made for, and run on, what this makes of them.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxserve.config.fields import Quantization
from jaxserve.errors import ConfigError
from jaxserve.models.binding import Params, param_products
from jaxserve.models.config import DecoderConfig
from jaxserve.models.parameter import Product
from pallas_kernels.matmul import PackedMatrix, why_plain
from pallas_kernels.matmul.packed import pack, packed_shape, quantize, quantized_shape
from pallas_kernels.registry import Target


class Packer:
    """Packs the parameters that are matrices of products, where that is better for the device.

    On several devices, and on those without native kernels, every parameter stays as it is. Quantized are those that are nothing
    but the matrix of a product: not an embedding table, though logits may be made with it.

    Args:
        config: the decoder.
        mesh: the devices.
        quantization: what matrices are rounded to.

    Raises:
        ConfigError: several devices, and a quantization. The methods raise it where native kernels cannot multiply what they are
            given, and it was to be quantized.
    """

    def __init__(self, config: DecoderConfig, mesh: Mesh, quantization: Quantization = "none") -> None:
        self._quantizes = quantization == "int8"
        if self._quantizes and mesh.devices.size > 1:
            raise _cannot(f"one device, not {mesh.devices.size}")
        self._target = Target.of(mesh.devices.flat[0])
        self._products = param_products(config) if mesh.devices.size == 1 else {}
        self._placed = NamedSharding(mesh, PartitionSpec())

    def pack(self, path: tuple[str, ...], parameter: jax.Array) -> jax.Array | PackedMatrix:
        """A parameter as it is to be held."""
        product = self._product(path, parameter)
        if product is None:
            return parameter
        if self._quantizes and product.form == "panels":
            return quantize(parameter, product.split)
        return pack(parameter, product.split, product.form)

    def shape(self, path: tuple[str, ...], leaf: Any) -> Any:
        """What `pack` makes of a parameter of which only shape and dtype are known: with a jax.ShapeDtypeStruct for the array."""
        product = self._product(path, leaf)
        if product is None:
            return leaf
        if self._quantizes and product.form == "panels":
            return quantized_shape(leaf, product.split, self._placed)
        return packed_shape(leaf, *product, self._placed)

    def shapes(self, params: Params) -> Params:
        """What `pack` makes of every leaf of `placed_params`."""
        packed: Params = jax.tree.map_with_path(lambda keys, leaf: self.shape(tuple(str(key.key) for key in keys), leaf), params)
        return packed

    def _product(self, path: tuple[str, ...], leaf: Any) -> Product | None:
        product = self._products.get(path)
        if product is None or (reason := why_plain(leaf.dtype, self._target)) is None:
            return product
        if self._quantizes:
            raise _cannot(f"native kernels: {reason}")
        return None


def _cannot(needed: str) -> ConfigError:
    return ConfigError(f"quantization 'int8' needs {needed}", param="quantization")
