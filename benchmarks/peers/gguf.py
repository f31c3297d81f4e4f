"""Writes a GGUF file, version 3 (github.com/ggml-org/ggml/blob/master/docs/gguf.md): as much of it as a plain Llama needs."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_TENSOR_TYPES = {"float32": 0, "float16": 1, "bfloat16": 30}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A name, and an array in row order of float32, float16 or bfloat16."""

    name: str
    array: npt.NDArray[Any]


def write_gguf(path: Path, fields: Mapping[str, Any], tensors: Sequence[Tensor]) -> None:
    """Write a file. Fields are integers, floats, booleans, strings, and lists of strings or integers."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(fields))]
    head += [_string(name) + _value(value) for name, value in fields.items()]
    offset = 0
    for tensor in tensors:
        shape = tensor.array.shape[::-1]  # the dimension that varies fastest comes first
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head.append(_string(tensor.name) + sizes + struct.pack("<IQ", _TENSOR_TYPES[tensor.array.dtype.name], offset))
        offset += _padded(tensor.array.nbytes)
    with path.open("wb") as file:
        written = b"".join(head)
        file.write(written.ljust(_padded(len(written)), b"\0"))
        for tensor in tensors:
            data = np.ascontiguousarray(tensor.array).tobytes()
            file.write(data.ljust(_padded(len(data)), b"\0"))


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
