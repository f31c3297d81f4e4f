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
from pallas_kernels.quantization import FP8Blocks, Scheme


def read_stored(tensors: Dequantized, rule: WeightRule, target: Matrix, dtype: str) -> Matrix:
    """A matrix with a scale an output, or for groups of its inputs, as it is stored.

    Args:
        tensors: where the rule's tensors are.
        rule: what the parameter is made from.
        target: shapes and shardings of what is wanted.
        dtype: that the parameter would be read in.

    Raises CheckpointError: values that are NaN, by name, and factors that are none.
    """
    values = _Values(tensors, rule, target.scheme)
    scales = _Scales(values.scales)
    of_scales = _of_scales(rule, target.scheme)
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
        return read_block(scales, of_scales, shape, here, "float32")

    held = jax.make_array_from_callback(target.values.shape, target.values.sharding, block_of_values)
    held.block_until_ready()  # the host's copy goes before the next parameter comes
    factors = jax.make_array_from_callback(target.scales.shape, target.scales.sharding, block_of_scales)
    return replace(target, values=held, scales=factors)


def _of_scales(rule: WeightRule, scheme: Scheme) -> WeightRule:
    """How scales become those of the parameter: matrices [outputs, groups] as the values do, or vectors."""
    if isinstance(scheme, FP8Blocks):
        grouped = (replace(source, shape=(source.shape[0], source.shape[1] // scheme.group)) for source in rule.sources)
        return replace(rule, sources=tuple(grouped))
    vectors = (replace(source, shape=source.shape[:1]) for source in rule.sources)
    return replace(rule, sources=tuple(vectors), packing=Packing.COLUMNS if rule.packing is Packing.COLUMNS else Packing.WHOLE)


class _Values:
    """The matrices of a parameter in a scheme. See `Tensors`.

    Attributes:
        scales: by name, [outputs, groups of inputs], of what was read so far.
    """

    def __init__(self, tensors: Dequantized, rule: WeightRule, scheme: Scheme) -> None:
        self._tensors, self._scheme = tensors, scheme
        inputs = rule.sources[0].shape[1]
        self._group = scheme.group if isinstance(scheme, FP8Blocks) else inputs
        self.scales = {
            source.name: np.zeros((source.stored_shape[0], inputs // self._group), np.float32) for source in rule.sources
        }

    def read(self, name: str, bounds: Bounds) -> Block:
        values, (scales,) = as_scheme(self._tensors.coded(name, bounds), self._scheme)
        first = bounds[1][0] // self._group
        self.scales[name][slice(*bounds[0]), first : first + len(scales)] = scales.T
        return values


class _Scales:
    """Their scales, once the values were read. See `Tensors`."""

    def __init__(self, scales: dict[str, Block]) -> None:
        self._scales = scales

    def read(self, name: str, bounds: Bounds) -> Block:
        outputs, *groups = bounds
        read = self._scales[name][slice(*outputs)]
        return read[:, slice(*groups[0])] if groups else read[:, 0]
