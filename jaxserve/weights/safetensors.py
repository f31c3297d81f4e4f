"""A checkpoint's tensors in safetensors files: names, shapes, and any block without reading the rest.

A file is eight bytes with the length of its header, the header (JSON: dtype, shape and place of every tensor), and the tensors
(https://github.com/huggingface/safetensors#format). Blocks are read with `pread`, not through a mapping of the file: large
reads by several threads keep a disk busy, where faults of single pages do not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType, TracebackType

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from jaxserve.errors import CheckpointError
from jaxserve.models.checkpoint import read_json_object
from jaxserve.weights.checkpoint import Block, Bounds

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES: Mapping[str, np.dtype] = MappingProxyType(
    {
        "F64": np.dtype(np.float64),
        "F32": np.dtype(np.float32),
        "F16": np.dtype(np.float16),
        "BF16": np.dtype(ml_dtypes.bfloat16),
        "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
        "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
        "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
        "I64": np.dtype(np.int64),
        "I32": np.dtype(np.int32),
        "I16": np.dtype(np.int16),
        "I8": np.dtype(np.int8),
        "U64": np.dtype(np.uint64),
        "U32": np.dtype(np.uint32),
        "U16": np.dtype(np.uint16),
        "U8": np.dtype(np.uint8),
        "BOOL": np.dtype(np.bool_),
    }
)
LISTED = 8
"""How many names a complaint lists before it only counts."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where a tensor is: a file, and the place of its first byte."""

    path: Path
    descriptor: int
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype


class SafetensorsCheckpoint:
    """The tensors of one directory, from the file `single` or from those that its index names. See `Checkpoint`.

    Raises:
        CheckpointError: no weights, a file that the index names but the directory lacks, a damaged file, tensors in other files
            than the index says, or of a dtype that numpy has no name for.
    """

    def __init__(self, directory: Path, single: str = SINGLE) -> None:
        self._open = ExitStack()
        self._tensors: dict[str, _Stored] = {}
        index = _read_index(directory)
        try:
            for path in _files(directory, index, single):
                self._add(path, index)
        except BaseException:
            self._open.close()
            raise
        self.shapes: Mapping[str, tuple[int, ...]] = {name: tensor.shape for name, tensor in self._tensors.items()}
        self.dtypes: Mapping[str, str] = {name: tensor.dtype.name for name, tensor in self._tensors.items()}

    def __enter__(self) -> SafetensorsCheckpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._tensors.clear()
        self._open.close()

    def read(self, name: str, bounds: Bounds) -> Block:
        """See `Tensors`. Reads one run of bytes, from the block's first to its last."""
        tensor = self._tensors[name]
        outer = next((axis for axis, (start, stop) in enumerate(bounds) if stop - start != 1), len(bounds))
        strides = [prod(tensor.shape[axis + 1 :]) for axis in range(len(bounds))]
        first = sum(start * stride for (start, _), stride in zip(bounds[:outer], strides, strict=False))
        shape: tuple[int, ...] = ()
        if outer < len(bounds):  # of this dimension a range, of those inside it everything, of those around it one
            start, stop = bounds[outer]
            first += start * strides[outer]
            shape = (stop - start, *tensor.shape[outer + 1 :])
        block = np.empty(shape, tensor.dtype)
        _fill(memoryview(block.reshape(-1).view(np.uint8)), tensor, first * tensor.dtype.itemsize, name)
        inside = (slice(None),) * (outer < len(bounds)) + tuple(slice(*part) for part in bounds[outer + 1 :])
        return block[inside].reshape([stop - start for start, stop in bounds])

    def reads_rows(self, name: str) -> bool:
        """Always: elements are stored in C order."""
        return name in self._tensors

    def file_of(self, name: str) -> Path | None:
        return self._tensors[name].path if name in self._tensors else None

    def _add(self, path: Path, index: Mapping[str, str] | None) -> None:
        try:
            with safe_open(path, framework="numpy"):  # checks the header against the file
                pass
            descriptor = os.open(path, os.O_RDONLY)
            self._open.callback(os.close, descriptor)
            length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
            header = json.loads(os.pread(descriptor, length, 8))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is damaged: {error}", param="model") from error
        header.pop("__metadata__", None)
        odd = [f"{name} ({entry['dtype']})" for name, entry in header.items() if entry["dtype"] not in DTYPES]
        if odd:
            raise CheckpointError(f"{path} has tensors of unknown dtypes: {listed(odd)}", param="model")
        if index is not None:
            _check_placed(path, set(header), index)
        for name, entry in header.items():
            offset = 8 + length + entry["data_offsets"][0]
            self._tensors[name] = _Stored(path, descriptor, offset, tuple(entry["shape"]), DTYPES[entry["dtype"]])


def _fill(buffer: memoryview, tensor: _Stored, first: int, name: str) -> None:
    """Fill a buffer with a tensor's bytes from its `first` on."""
    done = 0
    while done < len(buffer):
        try:
            count = os.preadv(tensor.descriptor, [buffer[done:]], tensor.offset + first + done)
        except OSError as error:
            raise CheckpointError(f"{tensor.path}: {name} cannot be read: {error}", param="model") from error
        if not count:
            raise CheckpointError(f"{tensor.path} ends within {name}: it has become shorter", param="model")
        done += count


def _read_index(directory: Path) -> dict[str, str] | None:
    path = directory / INDEX
    if not path.is_file():
        return None
    weight_map = read_json_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{path} has no weight_map from tensors to files", param="model")
    return weight_map


def _files(directory: Path, index: Mapping[str, str] | None, single: str) -> list[Path]:
    if index is None:
        if not (directory / single).is_file():
            raise CheckpointError(f"{directory} has neither {single} nor {INDEX}", param="model")
        return [directory / single]
    names = sorted(set(index.values()))
    # Only plain names: an index must not reach outside its own directory.
    missing = [name for name in names if Path(name).name != name or not (directory / name).is_file()]
    if missing:
        raise CheckpointError(f"{directory} lacks files that {INDEX} names: {listed(missing)}", param="model")
    return [directory / name for name in names]


def _check_placed(path: Path, names: set[str], index: Mapping[str, str]) -> None:
    """Raise unless a file has exactly the tensors that the index places in it."""
    placed = {name for name, file in index.items() if file == path.name}
    lacks = sorted(placed - names)
    if lacks:
        raise CheckpointError(f"{path} lacks tensors that {INDEX} places there: {listed(lacks)}", param="model")
    extra = [f"{name} ({index.get(name, 'nowhere')})" for name in sorted(names - placed)]
    if extra:
        raise CheckpointError(f"{path} has tensors that {INDEX} places elsewhere: {listed(extra)}", param="model")


def listed(names: list[str]) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
