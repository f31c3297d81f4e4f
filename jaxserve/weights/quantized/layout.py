"""Shows the tensors of a quantized checkpoint as those of one that is not: several stored tensors may be one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxserve.models.quantization_methods import Quantization
from jaxserve.weights.checkpoint import Block, Bounds, Tensors
from jaxserve.weights.quantized.find import find, unread
from jaxserve.weights.quantized.numbers import Coded
from jaxserve.weights.quantized.stored import CodedTensor, QuantizedTensor, Shape, Stored


@dataclass(frozen=True, slots=True)
class Layout:
    """Which tensors a checkpoint has once it is dequantized, and which of them are made from several stored ones.

    Attributes:
        dtypes: names of the dtypes that they are read in.
        quantized: those that are dequantized; the others are read as they are.
    """

    shapes: Mapping[str, Shape]
    dtypes: Mapping[str, str]
    quantized: Mapping[str, QuantizedTensor]

    @staticmethod
    def of(shapes: Mapping[str, Shape], dtypes: Mapping[str, str], quantization: Quantization | None, dtype: str) -> Layout:
        """The layout of a checkpoint; reads nothing. `shapes` and `dtypes` are the stored tensors'; for the others see `find`."""
        if quantization is None:
            return Layout(shapes, dtypes, {})
        stored = Stored(shapes, dtypes)
        quantized = find(quantization, stored, dtype)
        parts = unread(quantization, stored).union(*(tensor.parts for tensor in quantized.values()))
        kept = {name: shape for name, shape in shapes.items() if name not in parts}
        return Layout(
            kept | {name: tensor.shape for name, tensor in quantized.items()},
            {name: dtypes[name] for name in kept} | {name: tensor.dtype for name, tensor in quantized.items()},
            quantized,
        )


class Dequantized:
    """The tensors of a layout, read from those that a checkpoint stores. See `Tensors`."""

    def __init__(self, stored: Tensors, layout: Layout) -> None:
        self._stored = stored
        self._quantized = layout.quantized
        self._latest: tuple[tuple[str, Bounds], Block] | None = None

    def read(self, name: str, bounds: Bounds) -> Block:
        """The block of a tensor between (start, stop) in every dimension, in the layout's dtype.

        The latest one is kept: an expert's gate and up may alternate in one block, which is then read for both in turn.
        """
        tensor = self._quantized.get(name)
        if tensor is None:
            return self._stored.read(name, bounds)
        wanted, latest = (name, bounds), self._latest
        if latest is not None and latest[0] == wanted:
            return latest[1]
        block = tensor.read(self._stored, bounds)
        self._latest = (wanted, block)
        return block

    def stored_name(self, name: str) -> str:
        """One of the stored tensors that a tensor is made from."""
        tensor = self._quantized.get(name)
        return name if tensor is None else min(tensor.parts)

    def coded(self, name: str, bounds: Bounds) -> Coded:
        """A block of a matrix as it is stored, whose scheme is not None."""
        tensor = self._quantized[name]
        assert isinstance(tensor, CodedTensor)
        return tensor.coded(self._stored, bounds)
