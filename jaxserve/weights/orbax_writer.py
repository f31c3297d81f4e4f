"""Writes tensors as an Orbax checkpoint that anything with Orbax reads, one tensor in memory at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from jaxserve.weights.checkpoint import Block, piece

_FILE = 2**28
"""Bytes after which a data file is written and the next begun: they wait in memory until then."""


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """A tensor that is read when it is written."""

    name: str
    read: Callable[[], Block]


def write_orbax(directory: Path, tensors: Iterable[LazyTensor], written: Callable[[str, Block], None]) -> None:
    """Write a flat tree {name: array} to a directory that must not exist yet; it appears when all is written.

    Args:
        directory: of the checkpoint.
        tensors: what it is to hold.
        written: told each tensor after it was written.
    """
    tree = {tensor.name: tensor for tensor in tensors}
    registry = ocp.type_handlers.create_type_handler_registry((LazyTensor, _LazyTensorHandler(written)))
    # Not compressed: weights hardly shrink, and unpacking them would be slower than most disks.
    handler = ocp.PyTreeCheckpointHandler(use_zarr3=True, use_compression=False, type_handler_registry=registry)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(
            directory.absolute(),
            args=ocp.args.PyTreeSave(tree, ocdbt_target_data_file_size=_FILE),
        )


class _LazyTensorHandler(ocp.type_handlers.NumpyHandler):  # type: ignore[misc]
    """Writes one tensor after the other, as Orbax writes numpy arrays, where Orbax's own handler holds them all."""

    def __init__(self, written: Callable[[str, Block], None]) -> None:
        super().__init__(deepcopy_host_arrays=False)
        self._written = written

    async def serialize(
        self,
        values: Sequence[LazyTensor],
        infos: Sequence[ocp.type_handlers.ParamInfo],
        args: Sequence[ocp.SaveArgs] | None = None,
    ) -> Sequence[ocp.future.Future]:
        """Write them all; nothing is left to be waited for."""
        for value, info, arguments in zip(values, infos, args or [ocp.SaveArgs()] * len(values), strict=True):
            tensor = value.read()
            for writing in await super().serialize([tensor], [info], [arguments]):
                await asyncio.to_thread(writing.result)
            self._written(value.name, tensor)
        return []

    async def _open_and_write(self, value: Block, tspec: dict[str, Any], ts_context: Any) -> None:
        """Of Orbax: writes an array as a specification says. Chunks become what is read at a time, which no argument of Orbax
        can say: each a run of rows. Where Orbax no longer asks here, they are as Orbax likes them, and reading is slower.
        """
        metadata, chunk = tspec["metadata"], list(piece(value.shape))
        for grid in (metadata["chunk_grid"], metadata["codecs"][0]):
            grid["configuration"]["chunk_shape"] = chunk
        await super()._open_and_write(value, tspec, ts_context)
