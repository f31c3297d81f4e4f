"""What is wrong with a stored tensor: told by its name where it is found, and with its file where the checkpoint is open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jaxserve.errors import CheckpointError
from jaxserve.weights.checkpoint import Checkpoint


class TensorError(CheckpointError):
    """A tensor that cannot be read as it should be, `tensor`; what is said names it. `naming_files` adds its file."""

    def __init__(self, tensor: str, said: str) -> None:
        super().__init__(said, param="model")
        self.tensor = tensor

    def copy(self) -> TensorError:
        return TensorError(self.tensor, self.message)


@contextmanager
def naming_files(checkpoint: Checkpoint) -> Iterator[None]:
    """Raise CheckpointError, with the tensor's file, for a TensorError inside."""
    try:
        yield
    except TensorError as error:
        file = checkpoint.file_of(error.tensor)
        where = "" if file is None else f" (in {file})"
        raise CheckpointError(f"{error.message}{where}", param="model") from error
