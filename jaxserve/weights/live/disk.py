"""Weights of a checkpoint on their way into an engine that serves others of the same model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxserve.config.fields import ModelConfig
from jaxserve.errors import CheckpointError
from jaxserve.models.config import DecoderConfig
from jaxserve.weights.fingerprint import model_fingerprint
from jaxserve.weights.formats import StoredFormat
from jaxserve.weights.jobs import TensorRead
from jaxserve.weights.load import reading
from jaxserve.weights.packed import Packer
from jaxserve.weights.stored_schemes import Schemes, stored_schemes
from pallas_kernels.matmul import Weight


@dataclass(frozen=True, slots=True)
class DiskWeights:
    """A checkpoint that was read once, to see that all of it is there and all numbers, and is read again. See `Incoming`.

    Args:
        directory: with weights, and with config.json only if they are quantized.
        packer: how the engine holds parameters.
        stored: which of them it holds as the checkpoint that it was built from has them.

    Raises CheckpointError for a checkpoint that is damaged, or not of this decoder, or quantized otherwise.
    """

    directory: Path
    config: DecoderConfig
    jobs: Sequence[TensorRead]
    dtype: str
    load_format: StoredFormat
    packer: Packer
    stored: Schemes
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        if not self.directory.is_dir():
            raise CheckpointError(f"there is no checkpoint directory {self.directory}", param="model_path")
        has_config = (self.directory / "config.json").is_file()
        stored = stored_schemes(self.directory, self.config, self.load_format) if has_config else ()
        if stored != self.stored:
            raise CheckpointError(
                f"{self.directory} is not quantized as the checkpoint is that the engine was built from", param="model_path"
            )
        for _ in self.parameters():
            pass
        asked = ModelConfig(load_format=self.load_format)
        object.__setattr__(self, "fingerprint", model_fingerprint(self.directory, self.config, asked))

    @property
    def sizes(self) -> dict[tuple[str, ...], int]:
        return {job.rule.path: job.bytes for job in self.jobs}

    def parameters(self) -> Iterator[tuple[tuple[str, ...], Weight]]:
        with reading(self.directory, self.config, self.jobs, self.dtype, self.load_format, packer=self.packer) as read:
            for job in self.jobs:
                yield job.rule.path, read(job)
