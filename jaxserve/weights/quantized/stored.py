"""What the tensors of a quantized checkpoint are made of: stored tensors by name, and the one that several stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxserve.weights.checkpoint import Block, Bounds, Tensors
from jaxserve.weights.quantized.numbers import Coded
from jaxserve.weights.tensor_error import TensorError
from pallas_kernels.quantization import Scheme

Shape = tuple[int, ...]


class QuantizedTensor(Protocol):
    """A tensor that several stored ones stand for."""

    @property
    def shape(self) -> Shape: ...

    @property
    def dtype(self) -> str:
        """Name of the dtype that it is read in."""
        ...

    @property
    def parts(self) -> frozenset[str]:
        """Names of the stored tensors that are no tensors of their own."""
        ...

    def read(self, tensors: Tensors, bounds: Bounds) -> Block:
        """The dequantized block between the bounds."""
        ...


@runtime_checkable
class CodedTensor(QuantizedTensor, Protocol):
    """One whose codes and factors can be had as they are."""

    @property
    def scheme(self) -> Scheme | None:
        """In which it can be held; None for none that there is."""
        ...

    def coded(self, tensors: Tensors, bounds: Bounds) -> Coded:
        """The block between the bounds, not dequantized; of a stack of matrices, those of one of them."""
        ...


@dataclass(frozen=True, slots=True)
class Stored:
    """Shapes and names of dtypes of the stored tensors, by name."""

    shapes: Mapping[str, Shape]
    dtypes: Mapping[str, str]

    def ending(self, suffix: str) -> list[str]:
        """Names that end so, without it."""
        return [name.removesuffix(suffix) for name in self.shapes if name.endswith(suffix)]

    def of_dtype(self, dtype: str) -> list[str]:
        return [name for name, stored in self.dtypes.items() if stored == dtype]

    def present(self, *names: str) -> frozenset[str]:
        """Those of the names that the checkpoint has."""
        return frozenset(name for name in names if name in self.shapes)

    def matrix(self, name: str, *dtypes: str) -> tuple[int, int]:
        """The shape of a stored matrix. Raises TensorError unless it is one, of one of the dtypes."""
        shape, dtype = self.shapes[name], self.dtypes[name]
        if dtype not in dtypes:
            raise TensorError(name, f"{name} is {dtype}, not {' or '.join(dtypes)}")
        if len(shape) != 2:
            raise TensorError(name, f"{name} is {list(shape)}, not a matrix")
        return (shape[0], shape[1])

    def require(self, name: str, owner: str) -> str:
        """The name. Raises TensorError if the checkpoint lacks it."""
        if name not in self.shapes:
            raise TensorError(owner, f"{owner} is quantized, but the checkpoint lacks its factors {name}")
        return name

    def require_like(self, name: str, owner: str, shapes: tuple[Shape, ...], dtypes: tuple[str, ...]) -> None:
        """Raise TensorError unless a tensor of one of the shapes and dtypes is there."""
        shape, dtype = self.shapes[self.require(name, owner)], self.dtypes[name]
        if shape not in shapes:
            needed = " or ".join(str(list(needed)) for needed in shapes)
            raise TensorError(name, f"{name} is {list(shape)}, but {owner} needs {needed}")
        if dtype not in dtypes:
            raise TensorError(name, f"{name} is {dtype}; read are {', '.join(dtypes)}")
