"""The vectors of a job of embeddings in one file, made of its output when all of it is done.

A line of JSON is what can be appended and cut off, so that a job can be killed; an array is what programs read. Memory is
bounded: the output is read line by line, once to count and once to write.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from jaxserve.errors import ConfigError

NPY, PARQUET = ".npy", ".parquet"
GROUP_ROWS = 4096  # of a Parquet file that are in memory at once
WRITTEN = np.dtype("<f4")  # of embeddings in base64


@dataclass(frozen=True, slots=True)
class VectorRow:
    """One vector: the line that asked for it, which of the line's inputs it is of, and its numbers, float32 [D]."""

    custom_id: str
    index: int
    numbers: npt.NDArray[np.float32]


class _Embedding(msgspec.Struct):
    embedding: list[float] | str
    index: int


class _Body(msgspec.Struct):
    data: list[_Embedding] = []


class _Response(msgspec.Struct):
    body: _Body


class _Line(msgspec.Struct):
    custom_id: str
    response: _Response


def check_vectors(path: Path) -> None:
    """Raise ConfigError for a file that cannot be written: by what its name ends with, or for want of a package."""
    if path.suffix not in (NPY, PARQUET):
        raise ConfigError(f"vectors must end with {NPY} or {PARQUET}, got {path.name!r}", param="vectors")
    if path.suffix == PARQUET and find_spec("pyarrow") is None:
        raise ConfigError(f"vectors in a {PARQUET} file need pyarrow: pip install pyarrow", param="vectors")


def write_vectors(results: Path, path: Path) -> tuple[int, int]:
    """Write the vectors of a job's output, in its order, over whatever the file was. Returns how many, and D.

    `.npy`: float32 [N, D], and beside it NAME.ids.jsonl, whose line i is ["custom_id", index] of row i. `.parquet`: columns
    custom_id, index and embedding, a list of D floats.

    Raises ConfigError: there are none, or not all are as long; the file cannot be written.
    """
    count, width = _shape(results)
    try:
        (_write_npy if path.suffix == NPY else _write_parquet)(results, path, (count, width))
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}", param="vectors") from error
    finally:
        for each in (path, _ids(path)):
            _beside(each).unlink(missing_ok=True)
    return count, width


def vector_rows(results: Path) -> Iterator[VectorRow]:
    """The vectors of an output. Lines of other endpoints have none."""
    decoder = msgspec.json.Decoder(_Line)
    with results.open("rb") as file:
        for line in file:
            found = decoder.decode(line)
            for each in found.response.body.data:
                yield VectorRow(found.custom_id, each.index, _numbers(each.embedding))


def _numbers(written: list[float] | str) -> npt.NDArray[np.float32]:
    if isinstance(written, str):
        return np.frombuffer(base64.b64decode(written), WRITTEN).astype(np.float32)
    return np.array(written, np.float32)


def _shape(results: Path) -> tuple[int, int]:
    count = width = 0
    for count, row in enumerate(vector_rows(results), start=1):
        if count > 1 and row.numbers.size != width:
            raise ConfigError(
                f"vectors: they are of different lengths, {row.numbers.size} of {row.custom_id!r} and {width} of those before it",
                param="vectors",
            )
        width = row.numbers.size
    if count == 0:
        raise ConfigError(f"vectors: there are no embeddings in {results}", param="vectors")
    return count, width


def _write_npy(results: Path, path: Path, shape: tuple[int, int]) -> None:
    ids = _ids(path)
    new, new_ids = _beside(path), _beside(ids)
    array = np.lib.format.open_memmap(new, mode="w+", dtype=np.float32, shape=shape)
    with new_ids.open("wb") as names:
        for place, row in enumerate(vector_rows(results)):
            array[place] = row.numbers
            names.write(msgspec.json.encode([row.custom_id, row.index]) + b"\n")
    array.flush()
    del array
    os.replace(new_ids, ids)
    os.replace(new, path)


def _write_parquet(results: Path, path: Path, shape: tuple[int, int]) -> None:
    arrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    vector = arrow.list_(arrow.float32(), shape[1])
    schema = arrow.schema([("custom_id", arrow.string()), ("index", arrow.int32()), ("embedding", vector)])
    new = _beside(path)
    with parquet.ParquetWriter(new, schema) as writer:
        found = vector_rows(results)
        while rows := list(islice(found, GROUP_ROWS)):
            flat = arrow.array(np.concatenate([row.numbers for row in rows]))
            columns = [
                arrow.array([row.custom_id for row in rows]),
                arrow.array([row.index for row in rows], arrow.int32()),
                arrow.FixedSizeListArray.from_arrays(flat, type=vector),
            ]
            writer.write_table(arrow.table(columns, schema=schema))
    os.replace(new, path)


def _ids(path: Path) -> Path:
    return path.with_suffix(".ids.jsonl")


def _beside(path: Path) -> Path:
    """Where a file is written until it is whole."""
    return path.with_name(f".{path.name}.new")
