"""The one rule of how a parameter is held: which scheme its numbers have and which layout, by its path and its devices.

The decoder and the checkpoint know plain parameters; programs are made for, and run on, what this makes of them.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from jaxserve.config.fields import Quantization
from jaxserve.errors import ConfigError
from jaxserve.models.binding import Params, param_products, param_shardings
from jaxserve.models.config import DecoderConfig
from jaxserve.models.parameter import Product
from pallas_kernels.matmul import Layout, Matrix, Panels, Rows, Weight, pack, packed_shape, why_plain
from pallas_kernels.quantization import SCHEMES, Scheme
from pallas_kernels.registry import Target


class Packer:
    """Rounds and arranges the parameters that are matrices of products.

    Quantized are those that are nothing but the matrix of a product: not an embedding table, though logits may be made with it.
    Arranged for native kernels they are where one device has all of them; elsewhere they lie plain, divided as they always are.

    Args:
        quantization: what matrices are rounded to.

    The methods raise ConfigError where what was to be quantized cannot be: in a dtype that the scheme is not for, and on a single
    CPU device without native kernels, which is faster with matrices as they are.
    """

    def __init__(self, config: DecoderConfig, mesh: Mesh, quantization: Quantization = "none") -> None:
        self._quantization = quantization
        self._mesh = mesh
        self._target = Target.of(mesh.devices.flat[0])
        self._products = param_products(config)
        self._shardings = param_shardings(config, mesh)

    def matrix(self, path: tuple[str, ...], leaf: Any) -> Matrix | None:
        """How a parameter of this shape and dtype is held: jax.ShapeDtypeStructs with shardings. None for as it is."""
        product = self._products.get(path)
        if product is None:
            return None
        scheme = SCHEMES["none" if product.looked_up else self._quantization]
        layout = self._layout(product, leaf, scheme)
        if (layout.name, scheme.name) == ("plain", "none"):
            return None
        shapes = packed_shape(leaf, layout, scheme)
        specs = shapes.specs(self._shardings[path].spec)
        matrix: Matrix = jax.tree.map(
            lambda part, spec: jax.ShapeDtypeStruct(part.shape, part.dtype, sharding=NamedSharding(self._mesh, spec)),
            shapes,
            specs,
        )
        return matrix

    def _layout(self, product: Product, leaf: Any, scheme: Scheme) -> Layout:
        if (single := self._mesh.devices.size == 1) and (reason := why_plain(leaf.dtype, self._target, scheme.name)) is None:
            return Rows(product.inputs) if product.looked_up else Panels(product.inputs, leaf.shape)
        if scheme.name != "none" and single and self._target.platform == "cpu":
            raise _cannot(scheme, f"native kernels: {reason}")
        if leaf.dtype.name not in scheme.dtypes:
            raise _cannot(scheme, f"{' or '.join(scheme.dtypes)}, not {leaf.dtype.name}")
        return Layout(product.inputs)

    def pack(self, path: tuple[str, ...], parameter: jax.Array) -> Weight:
        target = self.matrix(path, parameter)
        return parameter if target is None else pack_as(target, parameter)

    def shapes(self, params: Params) -> Params:
        """What `pack` makes of every leaf of `placed_params`."""

        def shape(keys: Any, leaf: Any) -> Any:
            return self.matrix(tuple(str(key.key) for key in keys), leaf) or leaf

        packed: Params = jax.tree.map_with_path(shape, params)
        return packed


def _cannot(scheme: Scheme, needed: str) -> ConfigError:
    return ConfigError(f"quantization {scheme.name!r} needs {needed}", param="quantization")


def pack_as(target: Matrix, parameter: jax.Array) -> Matrix:
    """A parameter as `Packer.matrix` says that it is held; of any float dtype, if it is rounded."""
    held: Matrix = jax.device_put(pack(parameter, target.layout, target.scheme), jax.tree.map(lambda part: part.sharding, target))
    return held
