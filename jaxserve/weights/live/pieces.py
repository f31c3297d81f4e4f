"""Weights on their way between processes: named arrays, or parts of them, as pieces of bytes in the format of safetensors.

A piece may have a part of a large array: a vector of some of its elements in C order. The metadata of the piece then has the name
of the array, and where in it the part begins.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

import msgspec
import numpy as np

from jaxserve.errors import InvalidRequestError
from jaxserve.weights.check import FLOATS
from jaxserve.weights.checkpoint import Block
from jaxserve.weights.safetensors import DTYPES

FLOAT_DTYPES: Mapping[str, np.dtype] = MappingProxyType({str(one): one for one in DTYPES.values() if str(one) in FLOATS})
"""Of weights on their way, by name."""
_CODES = {str(dtype): code for code, dtype in DTYPES.items() if str(dtype) in FLOATS}
_METADATA = "__metadata__"
_LENGTH = 8  # bytes that say how long the header is
_ALIGNED = 8  # of the first element, so that numpy reads it where it is


@dataclass(frozen=True, slots=True)
class Part:
    """Some elements of an array: a vector of them, unless it is the `whole` array, and the first one's place."""

    name: str
    start: int
    elements: Block
    whole: bool


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def pieces_of(arrays: Iterable[tuple[str, Block]], piece_bytes: int) -> Iterator[bytes]:
    """Arrays as pieces with at most so many bytes of elements: small ones share a piece, large ones take several."""
    waiting: list[Part] = []
    size = 0
    for part in _parts(arrays, piece_bytes):
        if waiting and size + part.elements.nbytes > piece_bytes:
            yield write_piece(waiting)
            waiting, size = [], 0
        waiting.append(part)
        size += part.elements.nbytes
    if waiting:
        yield write_piece(waiting)


def _parts(arrays: Iterable[tuple[str, Block]], piece_bytes: int) -> Iterator[Part]:
    for name, array in arrays:
        if array.nbytes <= piece_bytes:
            yield Part(name, 0, array, whole=True)
            continue
        flat, step = array.reshape(-1), max(1, piece_bytes // array.itemsize)
        for start in range(0, flat.size, step):
            yield Part(name, start, flat[start : start + step], whole=False)


def write_piece(parts: Iterable[Part]) -> bytes:
    """Parts of different arrays as a piece."""
    header: dict[str, object] = {}
    starts: dict[str, str] = {}
    contents, end = [], 0
    for part in parts:
        elements = part.elements
        header[part.name] = {
            "dtype": _CODES[str(elements.dtype)],
            "shape": list(elements.shape),
            "data_offsets": [end, end + elements.nbytes],
        }
        if not part.whole:
            starts[part.name] = str(part.start)
        contents.append(elements.tobytes())
        end += elements.nbytes
    if starts:
        header[_METADATA] = starts
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return b"".join((len(text).to_bytes(_LENGTH, "little"), text, *contents))


def read_piece(content: bytes) -> list[Part]:
    """The parts of a piece; their elements are in its own bytes. Raises InvalidRequestError for what is none."""
    length = int.from_bytes(content[:_LENGTH], "little")
    if len(content) < _LENGTH or length > len(content) - _LENGTH:
        raise _broken(f"a header of {length} bytes in {len(content)}")
    try:
        header = msgspec.json.decode(content[_LENGTH : _LENGTH + length], type=dict[str, msgspec.Raw])
        starts = msgspec.json.decode(header.pop(_METADATA, b"{}"), type=dict[str, str])
        entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in header.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _broken(f"its header: {error}") from error
    elements = memoryview(content)[_LENGTH + length :]
    return [_part(name, entry, starts, elements) for name, entry in entries.items()]


def _part(name: str, entry: _Entry, starts: Mapping[str, str], elements: memoryview) -> Part:
    dtype = DTYPES.get(entry.dtype)
    if dtype is None or str(dtype) not in FLOATS:
        raise _broken(f"{name} is {entry.dtype}, not {', '.join(_CODES.values())}")
    first, end = entry.data_offsets
    if any(size < 0 for size in entry.shape) or not 0 <= first <= end <= len(elements):
        raise _broken(f"{name} {entry.shape} at {first} to {end} of {len(elements)} bytes")
    if end - first != prod(entry.shape) * dtype.itemsize:
        raise _broken(f"{name} {entry.shape} has {end - first} bytes")
    start = starts.get(name, "0")
    if not (start.isascii() and start.isdecimal() and len(start) < 20) or (name in starts and len(entry.shape) != 1):
        raise _broken(f"the part of {name} begins at {start!r}, and is {entry.shape}")
    array = np.frombuffer(elements[first:end], dtype).reshape(entry.shape)
    return Part(name, int(start), array, whole=name not in starts)


def _broken(what: str) -> InvalidRequestError:
    return InvalidRequestError(f"the piece is not safetensors with weights: {what}")
