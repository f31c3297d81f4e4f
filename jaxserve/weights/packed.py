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
from jaxserve.weights.stored_schemes import Schemes, held_schemes
from pallas_kernels.matmul import (
    CodePanels,
    Layout,
    Matrix,
    Panels,
    Rows,
    Weight,
    Words,
    pack,
    packed_shape,
    why_not_words,
    why_plain,
)
from pallas_kernels.quantization import SCHEMES, FourBit, Scheme
from pallas_kernels.registry import Target


class Packer:
    """Rounds and arranges the parameters that are matrices of products.

    Quantized are those that are nothing but the matrix of a product: not an embedding table, though logits may be made with it.
    Arranged for kernels they are where one device has all of them: panels for a CPU's native ones, words for a Hopper's.
    Elsewhere they lie plain, divided as they always are.

    Args:
        quantization: what matrices are rounded to.
        stored: how the checkpoint has some of them: held so where native kernels or a Hopper's read them, and nothing
            else was asked for.

    The methods raise ConfigError where what was to be quantized cannot be: in a dtype that the scheme is not for, and on a single
    CPU device without native kernels, which is faster with matrices as they are.
    """

    def __init__(self, config: DecoderConfig, mesh: Mesh, quantization: Quantization = "none", stored: Schemes = ()) -> None:
        self._quantization = quantization
        self._stored = held_schemes(stored, quantization)
        self._mesh = mesh
        self._target = Target.of(mesh.devices.flat[0])
        self._products = param_products(config)
        self._shardings = param_shardings(config, mesh)

    def matrix(self, path: tuple[str, ...], leaf: Any) -> Matrix | None:
        """How a parameter of this shape and dtype is held: jax.ShapeDtypeStructs with shardings. None for as it is."""
        product = self._products.get(path)
        if product is None:
            return None
        scheme = self._scheme(path, product, leaf)
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

    def holds_stored(self, path: tuple[str, ...], leaf: Any) -> bool:
        """Whether a parameter is held as the checkpoint has it."""
        scheme, product = self._stored.get(path), self._products.get(path)
        if scheme is None or product is None or scheme.fitted(leaf.shape, product.inputs) != scheme:
            return False
        single = self._mesh.devices.size == 1
        return single and (why_plain(leaf.dtype, self._target, scheme.name) is None or self._words(product, leaf, scheme))

    def _scheme(self, path: tuple[str, ...], product: Product, leaf: Any) -> Scheme:
        if product.looked_up:
            return SCHEMES["none"]
        if self.holds_stored(path, leaf):
            return self._stored[path]
        return SCHEMES[self._quantization].fitted(leaf.shape, product.inputs) or SCHEMES["none"]

    def _layout(self, product: Product, leaf: Any, scheme: Scheme) -> Layout:
        if (single := self._mesh.devices.size == 1) and (reason := why_plain(leaf.dtype, self._target, scheme.name)) is None:
            if product.looked_up:
                return Rows(product.inputs)
            panels = CodePanels if isinstance(scheme, FourBit) else Panels
            return panels(product.inputs, leaf.shape)
        if single and not product.looked_up and self._words(product, leaf, scheme):
            return Words.of(product.inputs, leaf.shape, scheme)
        if scheme.native_only:
            hopper = ", or a Hopper, whose kernel reads it beside bfloat16" if isinstance(scheme, FourBit) else ""
            raise _cannot(scheme, f"one CPU device, whose native kernels read it{hopper}")
        if scheme.name != "none" and single and self._target.platform == "cpu":
            raise _cannot(scheme, f"native kernels: {reason}")
        if leaf.dtype.name not in scheme.dtypes:
            raise _cannot(scheme, f"{' or '.join(scheme.dtypes)}, not {leaf.dtype.name}")
        return Layout(product.inputs)

    def _words(self, product: Product, leaf: Any, scheme: Scheme) -> bool:
        return why_not_words(leaf.shape, product.inputs, leaf.dtype, scheme, self._target) is None

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
