"""The one rule of how a parameter is held: which scheme its numbers have and which layout, by its path and its devices.

The decoder and the checkpoint know plain parameters; programs are made for, and run on, what this makes of them.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxserve.config.fields import Quantization
from jaxserve.errors import ConfigError
from jaxserve.models.binding import Params, param_products, param_shardings
from jaxserve.models.config import DecoderConfig
from jaxserve.models.parameter import Product
from jaxserve.weights.stored_schemes import Schemes, held_schemes
from pallas_kernels.grouped_matmul import why_not_words as why_no_stack_in_words
from pallas_kernels.matmul import (
    CodePanels,
    Division,
    Layout,
    Matrix,
    OutputsFirst,
    Panels,
    Rows,
    Weight,
    Words,
    pack,
    packed_shape,
    why_not_words,
    why_plain,
)
from pallas_kernels.quantization import FP8, SCHEMES, FourBit, Scheme
from pallas_kernels.registry import Target


class Packer:
    """Rounds and arranges the parameters that are matrices of products.

    Quantized are those that are nothing but the matrix of a product: not an embedding table, though logits may be made with it.
    Arranged for kernels they are in panels for a CPU's native ones, where one device has all of them; and in words for Hoppers',
    each of which has its part. Routed experts in fewer bits only they read, and only where one device has all. Elsewhere XLA
    multiplies by them. They are divided as they always are.

    Args:
        quantization: what matrices are rounded to.
        stored: how the checkpoint has some of them: held so where there are products for them, and nothing else was asked for.

    The methods raise ConfigError where what was to be quantized cannot be: in a dtype or on a GPU that the scheme is not for, and
    on a single CPU device without native kernels, which is faster with matrices as they are.
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
        if scheme.name == "none" and (product.stacked or layout.name == "plain"):
            return None
        shapes = packed_shape(leaf, layout, scheme.on(self._target), stacked=product.stacked)
        specs = shapes.specs(self._shardings[path].spec)
        matrix: Matrix = jax.tree.map(
            lambda part, spec: jax.ShapeDtypeStruct(part.shape, part.dtype, sharding=NamedSharding(self._mesh, spec)),
            shapes,
            specs,
        )
        return matrix

    def holds_stored(self, path: tuple[str, ...], leaf: Any) -> bool:
        """Whether a parameter is held as the checkpoint has it."""
        return self._stored_scheme(path, leaf) is not None

    def _stored_scheme(self, path: tuple[str, ...], leaf: Any) -> Scheme | None:
        """In which a parameter is held as the checkpoint has it; None where it is not."""
        stored, product = self._stored.get(path), self._products.get(path)
        if stored is None or product is None:
            return None
        shape, inputs = product.one(leaf.shape), product.inputs
        fitting = (scheme for scheme in stored if scheme.fitted(shape, inputs) == scheme)
        return next((scheme for scheme in fitting if self._multiplies(product, leaf, scheme)), None)

    def _multiplies(self, product: Product, leaf: Any, scheme: Scheme) -> bool:
        if not _takes(product, scheme):
            return False
        if self._has_kernel(product, leaf, scheme):
            return True
        return not product.stacked and self._needed(product, leaf, scheme) is None

    def _scheme(self, path: tuple[str, ...], product: Product, leaf: Any) -> Scheme:
        if (stored := self._stored_scheme(path, leaf)) is not None:
            return stored
        asked = SCHEMES[self._quantization]
        scheme = asked.fitted(product.one(leaf.shape), product.inputs) if _takes(product, asked) else None
        if scheme is None or (product.stacked and not self._has_kernel(product, leaf, scheme)):
            return SCHEMES["none"]
        return scheme

    def _has_kernel(self, product: Product, leaf: Any, scheme: Scheme) -> bool:
        return self._why_plain(leaf, scheme) is None or self._why_not_words(product, leaf, scheme) is None

    def _layout(self, product: Product, leaf: Any, scheme: Scheme) -> Layout:
        if self._why_plain(leaf, scheme) is None:
            if product.looked_up:
                return Rows(product.inputs)
            panels = CodePanels if isinstance(scheme, FourBit) else Panels
            return panels(product.inputs, product.one(leaf.shape))
        if self._why_not_words(product, leaf, scheme) is None:
            return Words.of(product.inputs, product.one(leaf.shape), scheme, self._division(leaf))
        if (needed := self._needed(product, leaf, scheme)) is not None:
            raise ConfigError(f"quantization {scheme.name!r} needs {needed}", param="quantization")
        return OutputsFirst(product.inputs) if isinstance(scheme, FP8) else Layout(product.inputs)

    def _why_plain(self, leaf: Any, scheme: Scheme) -> str | None:
        """Why native kernels do not read a parameter that one device has all of; None if they do."""
        if self._mesh.devices.size > 1:
            return "there are several devices"
        return why_plain(leaf.dtype, self._target, scheme.name)

    def _needed(self, product: Product, leaf: Any, scheme: Scheme) -> str | None:
        """What is missing for XLA to multiply by the scheme; None for nothing."""
        if scheme.native_only:
            here = f" (here: {self._why_not_words(product, leaf, scheme)})" if self._target.platform != "cpu" else ""
            hopper = f", or Hoppers, whose kernel reads it{here}" if isinstance(scheme, FourBit) else ""
            return f"one CPU device, whose native kernels read it{hopper}"
        if scheme.name != "none" and self._mesh.devices.size == 1 and self._target.platform == "cpu":
            if scheme.capability is not None:
                return f"{_gpus(scheme.capability)}, or several devices"
            return f"native kernels: {self._why_plain(leaf, scheme)}"
        if scheme.capability is not None and (self._target.capability or scheme.capability) < scheme.capability:
            return f"{_gpus(scheme.capability)}, not {self._target}"
        return None if leaf.dtype.name in scheme.dtypes else f"{' or '.join(scheme.dtypes)}, not {leaf.dtype.name}"

    def _why_not_words(self, product: Product, leaf: Any, scheme: Scheme) -> str | None:
        """Why a Hopper's kernel does not read a parameter, or a device's part of it; None if it does."""
        if product.looked_up:
            return "it is no single matrix"
        division = self._division(leaf)
        if product.stacked:
            several = None if division is None else "there are several devices"
            return several or why_no_stack_in_words(leaf.shape, product.inputs, leaf.dtype, scheme, self._target)
        part = leaf.shape if division is None else division.part_shape(leaf.shape)
        return why_not_words(part, product.inputs, leaf.dtype, scheme, self._target)

    def _division(self, leaf: Any) -> Division | None:
        """How a parameter is divided; None on one device."""
        if self._mesh.devices.size == 1:
            return None
        spec = leaf.sharding.spec
        return Division(self._mesh.abstract_mesh, PartitionSpec(*spec, *[None] * (len(leaf.shape) - len(spec))))

    def pack(self, path: tuple[str, ...], parameter: jax.Array) -> Weight:
        target = self.matrix(path, parameter)
        return parameter if target is None else pack_as(target, parameter)

    def shapes(self, params: Params) -> Params:
        """What `pack` makes of every leaf of `placed_params`."""

        def shape(keys: Any, leaf: Any) -> Any:
            return self.matrix(tuple(str(key.key) for key in keys), leaf) or leaf

        packed: Params = jax.tree.map_with_path(shape, params)
        return packed


def _takes(product: Product, scheme: Scheme) -> bool:
    """Whether a parameter that is the matrix of that product may be rounded so."""
    return not product.looked_up and not product.exact and (scheme.logits or not product.logits)


def _gpus(capability: tuple[int, int]) -> str:
    return f"GPUs of compute capability {capability[0]}.{capability[1]} or later"


def pack_as(target: Matrix, parameter: jax.Array) -> Matrix:
    """A parameter as `Packer.matrix` says that it is held; of any float dtype, if it is rounded."""
    held: Matrix = jax.device_put(
        pack(parameter, target.layout, target.scheme, stacked=target.stacked), jax.tree.map(lambda part: part.sharding, target)
    )
    return held
