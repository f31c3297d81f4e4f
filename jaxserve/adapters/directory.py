"""Adapters of directories: as PEFT saves them, or Orbax checkpoints of a trainer's LoRA beside an adapter_config.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxserve.adapters.config import AdapterConfig
from jaxserve.adapters.peft import WEIGHTS, AdapterFormat, HostAdapter, pack, read_peft
from jaxserve.adapters.trees import lora_tensors
from jaxserve.weights.checkpoint import Block, whole
from jaxserve.weights.orbax import OrbaxCheckpoint, find_orbax


def read_adapter(directory: Path, form: AdapterFormat, max_rank: int) -> HostAdapter:
    """An adapter of a directory. Raises CheckpointError, as `peft.read_peft` and `AdapterTrees.make`."""
    orbax = None if (directory / WEIGHTS).is_file() else find_orbax(directory)
    if orbax is None:
        return read_peft(directory, form, max_rank)
    config = AdapterConfig.read(directory)
    with OrbaxCheckpoint(orbax) as stored:
        arrays = {name.removesuffix(_VALUE): _OrbaxArray(stored, name) for name in stored.shapes}
        return pack(lora_tensors(form.model, config, arrays, "auto", f"adapter {directory}", "lora_path"), form, max_rank)


_VALUE = ".value"
"""What Orbax puts behind the names of an nnx.State's variables."""


@dataclass(frozen=True, slots=True)
class _OrbaxArray:
    """One that is read when numpy asks for it."""

    stored: OrbaxCheckpoint
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shapes[self.name]

    @property
    def dtype(self) -> str:
        return self.stored.dtypes[self.name]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Block:
        return np.asarray(self.stored.read(self.name, whole(self.shape)), dtype)
