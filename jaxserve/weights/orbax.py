"""A checkpoint's tensors in Orbax's format: names, shapes, and any block without reading the rest.

A tree of arrays, each a zarr array of chunks in one OCDBT database (https://orbax.readthedocs.io, "Checkpoint format"). What
Orbax wrote beside them, `_METADATA`, says which arrays there are; they are opened with tensorstore, as Orbax does. A name is
the keys of the path in the tree, joined with dots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import tensorstore as ts

from jaxserve.errors import CheckpointError
from jaxserve.models.checkpoint import read_json_object
from jaxserve.weights.checkpoint import PIECE, Block, Bounds

METADATA = "_METADATA"
FOLDER = "orbax"
"""Where a model directory has its Orbax checkpoint."""
_CONTEXT = MappingProxyType(
    {
        "cache_pool#index": {"total_bytes_limit": 2**26},  # of the database's index; chunks are read once and not kept
        "file_io_concurrency": {"limit": 4},  # threads of their own, as many as read: memory of one chunk serves the next
    }
)


class OrbaxCheckpoint:
    """The arrays of one Orbax checkpoint, the directory that has `_METADATA`. See `Checkpoint`.

    Raises CheckpointError: no Orbax checkpoint, a damaged one, or one whose arrays are not all there.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        metadata = read_json_object(directory / METADATA)
        try:
            names = list(_names(metadata["tree_metadata"]))
            context = ts.Context(dict(_CONTEXT))
            opening = {name: ts.open(spec, context=context) for name, spec in _specs(directory.absolute(), names, metadata)}
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{directory / METADATA} is not what Orbax writes: {error!r}", param="model") from error
        self._stores: dict[str, Any] = {}
        for name, store in opening.items():
            try:
                self._stores[name] = store.result()
            except (ValueError, OSError) as error:
                raise CheckpointError(f"{directory}: {name} cannot be opened: {_line(error)}", param="model") from error
        self.shapes: Mapping[str, tuple[int, ...]] = {name: tuple(store.shape) for name, store in self._stores.items()}
        self.dtypes: Mapping[str, str] = {name: store.dtype.name for name, store in self._stores.items()}

    def __enter__(self) -> OrbaxCheckpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stores.clear()

    def reads_rows(self, name: str) -> bool:
        """Whether its chunks are rows, and not much larger than what is read at a time."""
        shape, chunk = self.shapes[name], self._stores[name].chunk_layout.read_chunk.shape
        divided = next((axis for axis, size in enumerate(chunk) if size > 1), len(shape))
        is_run = all(chunk[axis] >= shape[axis] for axis in range(divided + 1, len(shape)))
        return is_run and prod(chunk) <= 2 * PIECE

    def file_of(self, name: str) -> Path | None:
        return self._directory if name in self._stores else None

    def read(self, name: str, bounds: Bounds) -> Block:
        """See `Tensors`. Reads the chunks that the block has a part in."""
        try:
            block: Block = self._stores[name][tuple(slice(*part) for part in bounds)].read().result()
        except (ValueError, OSError) as error:
            raise CheckpointError(f"{self._directory}: {name} cannot be read: {_line(error)}", param="model") from error
        return block


def find_orbax(directory: Path) -> Path | None:
    """The Orbax checkpoint of a model directory, or in what training wrote: itself, its `orbax`, `items` or `default`, or those
    of its last step.
    """
    for folder in (directory, *(directory / name for name in (FOLDER, "items", "default"))):
        if (folder / METADATA).is_file():
            return folder
    steps = [path for path in directory.iterdir() if path.name.isdecimal() and path.is_dir()] if directory.is_dir() else []
    return find_orbax(max(steps, key=lambda path: int(path.name))) if steps else None


def _names(tree: Mapping[str, Any]) -> Iterator[str]:
    """Of the arrays; empty containers and the like are listed too, and skipped."""
    for entry in tree.values():
        if not entry["value_metadata"].get("skip_deserialize", False):
            yield ".".join(str(part["key"]) for part in entry["key_metadata"])


def _specs(directory: Path, names: list[str], metadata: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    driver = "zarr3" if metadata["use_zarr3"] else "zarr"
    for name in names:
        store: dict[str, Any] = {"driver": "file", "path": f"{directory}/{name}/"}
        if metadata["use_ocdbt"]:
            base = {"driver": "file", "path": f"{directory}/"}
            store = {"driver": "ocdbt", "base": base, "path": f"{name}/", "cache_pool": "cache_pool#index"}
        yield name, {"driver": driver, "kvstore": store, "open": True}


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
