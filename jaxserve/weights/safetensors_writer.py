"""Writes tensors as safetensors, one of them in memory at a time, in files of bounded size.

Where each tensor goes is known from names, dtypes and shapes before the first one is there. Within a file those of larger numbers
come first, so that all are aligned, as readers that map the file need it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from jaxserve.weights.checkpoint import Block
from jaxserve.weights.safetensors import DTYPES, INDEX, SINGLE

FILE = 5 * 10**9
"""Bytes of a file, unless one tensor has more: what Hugging Face's own files have."""
_ALIGNED = 8
_NAMES: Mapping[str, str] = {dtype.name: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor that will be written; `dtype` as numpy and ml_dtypes call it."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return np.dtype(self.dtype).itemsize * prod(self.shape)


def write_safetensors(
    directory: Path, specs: Sequence[TensorSpec], tensors: Iterable[tuple[str, Block]], file_bytes: int = FILE
) -> None:
    """Write the weights of a model directory, with an index where there are several files.

    Args:
        directory: which is there.
        specs: of all tensors.
        tensors: them, in any order; in the order of the specs, files are written one after the other.
        file_bytes: largest file.
    """
    parts = _divided(specs, file_bytes)
    names = [SINGLE] if len(parts) == 1 else [f"model-{at:05}-of-{len(parts):05}.safetensors" for at in range(1, len(parts) + 1)]
    places: dict[str, tuple[int, int, TensorSpec]] = {}
    with ExitStack() as files:
        for name, part in zip(names, parts, strict=True):
            descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            files.callback(os.close, descriptor)
            header, offsets = _header(part)
            _write(descriptor, header, 0)
            places |= {spec.name: (descriptor, len(header) + offsets[spec.name], spec) for spec in part}
        for name, tensor in tensors:
            descriptor, offset, spec = places.pop(name)
            if tensor.shape != spec.shape or tensor.dtype.name != spec.dtype:
                raise ValueError(f"{name} is {tensor.dtype.name} {list(tensor.shape)}, not {spec.dtype} {list(spec.shape)}")
            _write(descriptor, np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data, offset)
    if places:
        raise ValueError(f"{len(places)} tensors were not written, the first {next(iter(places))}")
    if len(parts) > 1:
        weight_map = {spec.name: name for name, part in zip(names, parts, strict=True) for spec in part}
        index = {"metadata": {"total_size": sum(spec.nbytes for spec in specs)}, "weight_map": weight_map}
        (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _divided(specs: Sequence[TensorSpec], file_bytes: int) -> list[list[TensorSpec]]:
    parts: list[list[TensorSpec]] = [[]]
    room = file_bytes
    for spec in specs:
        if spec.nbytes > room and parts[-1]:
            parts.append([])
            room = file_bytes
        parts[-1].append(spec)
        room -= spec.nbytes
    return parts


def _header(part: Sequence[TensorSpec]) -> tuple[bytes, dict[str, int]]:
    """The bytes before the tensors, and how far behind them each tensor begins."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}  # transformers wants to know
    offsets: dict[str, int] = {}
    end = 0
    for spec in sorted(part, key=lambda spec: -np.dtype(spec.dtype).itemsize):
        offsets[spec.name], end = end, end + spec.nbytes
        entries[spec.name] = {
            "dtype": _NAMES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [offsets[spec.name], end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text, offsets


def _write(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        count = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[count:], offset + count
