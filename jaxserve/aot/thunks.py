"""Reads the list of what a GPU program launches, which XLA writes beside its HLO."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

LISTS = ("*.thunk_sequence_after_thunk_passes.txt", "*.thunk_sequence.txt")  # the first exists if passes changed anything
COMMAND_BUFFER = "kCommandBuffer"
_LINE = re.compile(r"(?P<indent> *)\d+: (?P<kind>k\w+)")
_KERNELS = ("kCustomKernel", "kKernel", "kGemm", "kCublasLtMatmul", "kCuDnn", "kCustomCall", "kTriangularSolve")
_NO_LAUNCH = ("kAsyncDone", "kPartitionId", "kReplicaId")


@dataclass(frozen=True, slots=True)
class Launches:
    """What one call of a program launches, or one of each of several.

    Attributes:
        command_buffers: graphs that are launched whole.
        single: launches outside of them.
        kernels: kernels in both, without those in branches of conditionals; a loop's body counts once.
        programs: how many.
    """

    command_buffers: int
    single: int
    kernels: int
    programs: int = 1

    @property
    def whole(self) -> bool:
        """Whether each program is one command buffer."""
        return self.command_buffers == self.programs and self.single == 0

    def __add__(self, other: Launches) -> Launches:
        return Launches(
            self.command_buffers + other.command_buffers,
            self.single + other.single,
            self.kernels + other.kernels,
            self.programs + other.programs,
        )


def read_launches(directory: Path) -> Launches:
    """From the directory that XLA wrote one program to (`xla_dump_to`). Raises FileNotFoundError if there is no list."""
    for pattern in LISTS:
        for path in sorted(directory.glob(pattern)):
            return parse_launches(path.read_text(encoding="utf-8"))
    raise FileNotFoundError(f"XLA wrote no thunk list to {directory}")


def parse_launches(text: str) -> Launches:
    """From the list itself: a line a launch, indented under what contains it."""
    buffers = single = kernels = 0
    conditional: int | None = None  # indentation of the conditional that the line is in
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        indent, kind = len(match["indent"]), match["kind"]
        if conditional is not None and indent <= conditional:
            conditional = None
        if indent == 0:
            buffers += kind == COMMAND_BUFFER
            single += kind != COMMAND_BUFFER and kind not in _NO_LAUNCH
        if conditional is None:
            kernels += kind in _KERNELS
            conditional = indent if kind == "kConditional" else None
    return Launches(buffers, single, kernels)
