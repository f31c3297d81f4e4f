"""Writes a GGUF file, version 3 (github.com/ggml-org/ggml/blob/master/docs/gguf.md): as much of it as a plain Llama needs."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

ALIGNMENT = 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_TENSOR_TYPES = {"float32": 0, "float16": 1, "q4_0": 2, "q8_0": 8, "bfloat16": 30}
_BLOCK = 32  # neighbours of a row that share a scale

Blocks = Literal["q8_0", "q4_0"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A name, and an array in row order of float32, float16 or bfloat16; with `blocks` its rows are rounded to these."""

    name: str
    array: npt.NDArray[Any]
    blocks: Blocks | None = None

    @property
    def type_number(self) -> int:
        return _TENSOR_TYPES[self.blocks or self.array.dtype.name]

    def data(self) -> bytes:
        """As the file has it."""
        array = np.ascontiguousarray(self.array)
        return array.tobytes() if self.blocks is None else _ROUNDED[self.blocks](array)


def write_gguf(path: Path, fields: Mapping[str, Any], tensors: Sequence[Tensor]) -> None:
    """Write a file. Fields are integers, floats, booleans, strings, and lists of strings or integers."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(fields))]
    head += [_string(name) + _value(value) for name, value in fields.items()]
    offset, contents = 0, [tensor.data() for tensor in tensors]
    for tensor, data in zip(tensors, contents, strict=True):
        shape = tensor.array.shape[::-1]  # the dimension that varies fastest comes first
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head.append(_string(tensor.name) + sizes + struct.pack("<IQ", tensor.type_number, offset))
        offset += _padded(len(data))
    with path.open("wb") as file:
        written = b"".join(head)
        file.write(written.ljust(_padded(len(written)), b"\0"))
        for data in contents:
            file.write(data.ljust(_padded(len(data)), b"\0"))


def _q8_0(array: npt.NDArray[Any]) -> bytes:
    """Blocks of a scale in float16 and 32 whole numbers of 8 bits, the largest of them 127."""
    rows = array.astype(np.float32).reshape(-1, _BLOCK)
    scales = np.abs(rows).max(axis=1) / 127
    numbers = np.rint(rows * _inverse(scales)[:, None]).astype(np.int8)
    return _interleaved(scales, numbers.view(np.uint8))


def _q4_0(array: npt.NDArray[Any]) -> bytes:
    """Blocks of a scale in float16 and 32 codes of 4 bits, i and i + 16 in a byte. The largest number is code 0: -8 scales."""
    rows = array.astype(np.float32).reshape(-1, _BLOCK)
    largest = np.take_along_axis(rows, np.abs(rows).argmax(axis=1)[:, None], axis=1)[:, 0]
    scales = largest / -8
    codes = np.minimum((rows * _inverse(scales)[:, None] + 8.5).astype(np.int32), 15).astype(np.uint8)
    return _interleaved(scales, codes[:, : _BLOCK // 2] | codes[:, _BLOCK // 2 :] << 4)


def _inverse(scales: npt.NDArray[Any]) -> npt.NDArray[Any]:
    inverse: npt.NDArray[Any] = np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)
    return inverse


def _interleaved(scales: npt.NDArray[Any], codes: npt.NDArray[Any]) -> bytes:
    return np.concatenate([scales.astype(np.float16)[:, None].view(np.uint8), codes], axis=1).tobytes()


_ROUNDED: Mapping[Blocks, Callable[[npt.NDArray[Any]], bytes]] = MappingProxyType({"q8_0": _q8_0, "q4_0": _q4_0})


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            return struct.pack("<II", _UINT32, value)
        case float():
            return struct.pack("<If", _FLOAT32, value)
        case str():
            return struct.pack("<I", _STRING) + _string(value)
        case [str(), *_]:
            return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_string, value))
        case [int(), *_]:
            return struct.pack(f"<IIQ{len(value)}i", _ARRAY, _INT32, len(value), *value)
        case _:
            raise TypeError(f"GGUF has no type for {value!r}")
