"""The implementations of round_rows and of the operations that round what they make, preferred first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pallas_kernels import hopper
from pallas_kernels.registry import Implementation, later
from pallas_kernels.round_rows import mosaic_gpu_support, xla
from pallas_kernels.round_rows.problem import RoundProblem

Table = tuple[Implementation[Callable[..., Any], RoundProblem], ...]
"""Functions take an operation's arguments after they were checked, see api.py."""


def _table(function: Callable[..., Any]) -> Table:
    """Of an operation, which is called alike in every implementation's file."""
    compiled, interpreted = hopper.implementations(
        later("pallas_kernels.round_rows.mosaic_gpu", function.__name__),
        mosaic_gpu_support.LIMITS,
        mosaic_gpu_support.supports,
        interpreted="every case, on CPUs",
    )
    plain = Implementation("xla", function, limits="everything", checked="every case, on CPUs; not yet run on a GPU")  # type: Implementation[Callable[..., Any], RoundProblem]
    return compiled, plain, interpreted


ROWS, NORMED, GATED = _table(xla.round_rows), _table(xla.round_normed), _table(xla.round_gated)

NAMES = tuple(entry.name for entry in ROWS)
