"""Shows the tensors of a quantized checkpoint as those of one that is not: several stored tensors may be one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxserve.errors import CheckpointError
from jaxserve.models.quantization import MXFP4, BlockFP8, Quantization
from jaxserve.weights.checkpoint import Block, Bounds, Tensors
from jaxserve.weights.quantized.fp8 import SCALE_SUFFIX, BlockFP8Matrix
from jaxserve.weights.quantized.mxfp4 import BLOCKS_SUFFIX, SCALES_SUFFIX, MXFP4Stack

Shapes = Mapping[str, tuple[int, ...]]
Quantized = BlockFP8Matrix | MXFP4Stack


@dataclass(frozen=True, slots=True)
class Layout:
    """Which tensors a checkpoint has once it is dequantized, and which of them are made from several stored ones.

    Attributes:
        dtypes: names of the dtypes that they are read in.
        quantized: those that are dequantized; the others are read as they are.
    """

    shapes: Shapes
    dtypes: Mapping[str, str]
    quantized: Mapping[str, Quantized]

    @staticmethod
    def of(shapes: Shapes, dtypes: Mapping[str, str], quantization: Quantization | None, dtype: str) -> Layout:
        """The layout of a checkpoint; reads nothing.

        Args:
            shapes: of the stored tensors, by name.
            dtypes: names of their dtypes.
            quantization: how config.json says they are quantized.
            dtype: name of the one that FP8 is dequantized to; MXFP4 is exact in bfloat16 and read as such.

        Raises CheckpointError: a quantized tensor without its factors, or whose parts do not belong together.
        """
        match quantization:
            case None:
                return Layout(shapes, dtypes, {})
            case BlockFP8(block):
                quantized, parts = _block_fp8(shapes, dtypes, block, dtype)
            case MXFP4():
                quantized, parts = _mxfp4(shapes, dtypes)
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


def _block_fp8(
    shapes: Shapes, dtypes: Mapping[str, str], block: tuple[int, int], dtype: str
) -> tuple[Mapping[str, Quantized], set[str]]:
    """The quantized tensors, and the names of the stored ones that they are made of."""
    tensors = {
        name: BlockFP8Matrix(name, shapes[name], block, dtype) for name, stored in dtypes.items() if stored == "float8_e4m3fn"
    }
    for name, tensor in tensors.items():
        scales = _part(shapes, name, SCALE_SUFFIX)
        tensor.check_scales(shapes[scales], dtypes[scales])
    return tensors, {name + suffix for name in tensors for suffix in ("", SCALE_SUFFIX)}


def _mxfp4(shapes: Shapes, dtypes: Mapping[str, str]) -> tuple[Mapping[str, Quantized], set[str]]:
    names = [name.removesuffix(BLOCKS_SUFFIX) for name in shapes if name.endswith(BLOCKS_SUFFIX)]
    tensors = {name: MXFP4Stack(name, shapes[name + BLOCKS_SUFFIX]) for name in names}
    for name, tensor in tensors.items():
        tensor.check_scales(shapes[_part(shapes, name, SCALES_SUFFIX)])
    parts = {name + suffix for name in names for suffix in (BLOCKS_SUFFIX, SCALES_SUFFIX)}
    for part in sorted(parts):
        if dtypes[part] != "uint8":
            raise CheckpointError(f"{part} is {dtypes[part]}, not uint8", param="model")
    return tensors, parts


def _part(shapes: Shapes, name: str, suffix: str) -> str:
    if name + suffix not in shapes:
        raise CheckpointError(f"{name} is quantized, but the checkpoint lacks its factors {name}{suffix}", param="model")
    return name + suffix
