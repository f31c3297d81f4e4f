"""The files of a job."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import BinaryIO

from jaxserve.errors import ConfigError


@dataclass(frozen=True, slots=True)
class JobFiles:
    """Where a job reads and writes.

    Attributes:
        input: requests, one a line.
        output: replies.
        errors: what became of all other lines.
        journal: how far the job is; SQLite, with another file beside it (-journal) while it is written.
        vectors: what is made of the output in the end, if anything.

    A file beside the journal (-running) has the lines in flight.
    """

    input: Path
    output: Path
    errors: Path
    journal: Path
    vectors: Path | None = None

    @classmethod
    def beside(cls, input: Path, output: Path, errors: Path | None = None, vectors: Path | None = None) -> JobFiles:
        """The other two named after the output: results.jsonl, results.errors.jsonl, results.jsonl.job."""
        default = output.with_name(f"{output.stem}.errors{output.suffix}")
        return cls(input, output, errors or default, output.with_name(output.name + ".job"), vectors)

    @property
    def running(self) -> Path:
        """See `jobs.in_flight`."""
        return self.journal.with_name(self.journal.name + "-running")

    def check(self) -> None:
        """Raise ConfigError for two that are one, or for files that another program seems to have written."""
        paths = {"input": self.input, "output": self.output, "errors": self.errors, "journal": self.journal}
        if self.vectors is not None:
            paths["vectors"] = self.vectors
        for (one, first), (other, second) in combinations(paths.items(), 2):
            if os.path.realpath(first) == os.path.realpath(second):
                raise ConfigError(f"{one} and {other} are one file: {first}", param=other)
        if _size(self.journal) == 0:
            for name in ("output", "errors"):
                if _size(paths[name]) > 0:
                    raise ConfigError(
                        f"{paths[name]} exists, but not the journal of its job ({self.journal}): "
                        "it would be overwritten; move it away, or give another name",
                        param=name,
                    )

    def open_input(self) -> BinaryIO:
        """The input. Raises ConfigError for what is no file that can be read twice."""
        try:
            file = self.input.open("rb")
        except OSError as error:
            raise ConfigError(f"cannot read {self.input}: {error.strerror}", param="input") from error
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise ConfigError(f"cannot read {self.input}: it is not a regular file, and must be read twice", param="input")
        return file


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
