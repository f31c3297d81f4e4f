"""Reads a matrix that is held as the checkpoint stores it, each device's block of values and scales straight to the device."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np

from jaxserve.models.rules import Packing, WeightRule
from jaxserve.weights.checkpoint import Block, Bounds
from jaxserve.weights.finite import is_finite, not_finite_error
from jaxserve.weights.packing import Index, read_block
from jaxserve.weights.quantized.layout import Dequantized
from jaxserve.weights.stored_schemes import as_scheme
from pallas_kernels.matmul import Matrix
from pallas_kernels.quantization import Scheme


def read_stored(tensors: Dequantized, rule: WeightRule, target: Matrix, dtype: str) -> Matrix:
    """A matrix with a scale an output, as it is stored.

    Args:
        tensors: where the rule's tensors are.
        rule: what the parameter is made from.
        target: shapes and shardings of what is wanted.
        dtype: that the parameter would be read in.

    Raises CheckpointError: values that are NaN, by name, and factors that are none.
    """
    values = _Values(tensors, rule, target.scheme)
    scales = _Scales(values.scales)
    of_outputs = replace(
        rule,
        sources=tuple(replace(source, shape=source.shape[:1]) for source in rule.sources),
        packing=Packing.COLUMNS if rule.packing is Packing.COLUMNS else Packing.WHOLE,
    )
    order = target.layout.order(len(target.shape))

    def block_of_values(index: Index | None) -> Block:
        here = (slice(None),) * len(order) if index is None else index
        at = tuple(here[place] for place in np.argsort(order))
        read = read_block(values, rule, target.shape, at, target.dtype.name, order).transpose(order)
        if not (np.issubdtype(read.dtype, np.integer) or is_finite(read)):
            raise not_finite_error(tensors, rule, dtype)
        return read

    def block_of_scales(index: Index | None) -> Block:
        shape = target.scales.shape
        here = (slice(None),) * len(shape) if index is None else index
        return read_block(scales, of_outputs, shape, here, "float32")

    held = jax.make_array_from_callback(target.values.shape, target.values.sharding, block_of_values)
    held.block_until_ready()  # the host's copy goes before the next parameter comes
    factors = jax.make_array_from_callback(target.scales.shape, target.scales.sharding, block_of_scales)
    return replace(target, values=held, scales=factors)


class _Values:
    """The matrices of a parameter in a scheme. See `Tensors`.

    Attributes:
        scales: by name, of the outputs that were read so far.
    """

    def __init__(self, tensors: Dequantized, rule: WeightRule, scheme: Scheme) -> None:
        self._tensors, self._scheme = tensors, scheme
        self.scales = {source.name: np.zeros(source.stored_shape[0], np.float32) for source in rule.sources}

    def read(self, name: str, bounds: Bounds) -> Block:
        values, (scales,) = as_scheme(self._tensors.coded(name, bounds), self._scheme)
        self.scales[name][slice(*bounds[0])] = scales
        return values


class _Scales:
    """Their scales, once the values were read. See `Tensors`."""

    def __init__(self, scales: dict[str, Block]) -> None:
        self._scales = scales

    def read(self, name: str, bounds: Bounds) -> Block:
        return self._scales[name][slice(*bounds[0])]
