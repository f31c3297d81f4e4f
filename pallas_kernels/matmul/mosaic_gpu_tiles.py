"""Sizes of the Mosaic GPU kernel of matmul. None was measured yet: they follow from registers and shared memory.

A decode step reads the matrix and little else, so what counts is how many bytes of it are on their way to each multiprocessor,
and that all multiprocessors have some: a matrix of few outputs is cut along its inputs, into sums that are added afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels.matmul.mosaic_gpu_numbers import Numbers
from pallas_kernels.matmul.problem import MatmulProblem
from pallas_kernels.matmul.words import BLOCK_INPUTS

WGMMA_OUTPUTS = 64
MOST_GROUPS = 2  # warpgroups beside each other: they share a tile of rows
MOST_ROWS = 128  # of a tile: the sums of 64 outputs are as many registers of a thread, a step's sums half of them
MOST_ROWS_OF_FACTORS = 64  # where a step has several sums: with more the compiler spills
STAGED_ROWS = 64  # of the result on its way out of a warpgroup's registers
FEWEST_STEPS = 4  # of a share of the inputs
ROW_TILE = 8
MULTIPROCESSORS = 132
SHARED_BYTES = 216 * 1024
MOST_SLOTS = 8


@dataclass(frozen=True)
class Tiles:
    """How the product is divided; static arguments of the kernel.

    Attributes:
        groups: warpgroups beside each other, 64 outputs each.
        rows: of x in a tile, a multiple of 8.
        row_tiles: how many.
        splits: shares of the inputs, each with a sum of its own.
        steps: of 128 inputs, of a share.
        slots: steps in shared memory.
        programs: thread blocks; each takes every so manieth piece.
    """

    groups: int
    rows: int
    row_tiles: int
    splits: int
    steps: int
    slots: int
    programs: int

    @property
    def outputs(self) -> int:
        """Of a thread block."""
        return self.groups * WGMMA_OUTPUTS

    @property
    def staged(self) -> int:
        """Rows that are written at once, a divisor of all."""
        return next(rows for rows in range(min(self.rows, STAGED_ROWS), 0, -ROW_TILE) if self.rows % rows == 0)


def choose_tiles(problem: MatmulProblem, numbers: Numbers, programs: int = MULTIPROCESSORS) -> Tiles:
    """The tiles for a problem that the kernel supports."""
    groups = _groups(problem.outputs)
    row_tiles = -(-problem.rows // (MOST_ROWS if numbers.factors == 1 else MOST_ROWS_OF_FACTORS))
    rows = _up(-(-problem.rows // row_tiles))
    pieces = -(-problem.outputs // (groups * WGMMA_OUTPUTS)) * row_tiles
    steps = problem.inputs // BLOCK_INPUTS
    most = min(max(programs // pieces, 1), max(steps // FEWEST_STEPS, 1))
    splits = next(splits for splits in range(most, 0, -1) if steps % splits == 0)
    staged = groups * min(rows, STAGED_ROWS) * WGMMA_OUTPUTS * 4
    factors = 0 if numbers.group is None else numbers.factors * (1 + numbers.zeros)
    step = rows * BLOCK_INPUTS * 2 + groups * WGMMA_OUTPUTS * (BLOCK_INPUTS * numbers.bits // 8 + factors * 4)
    slots = min(MOST_SLOTS, (SHARED_BYTES - staged) // step)
    return Tiles(groups, rows, row_tiles, splits, steps // splits, slots, min(programs, pieces * splits))


def _groups(outputs: int) -> int:
    """As many warpgroups as divide the outputs; of outputs that none do, as many as there are outputs for."""
    dividing = (groups for groups in range(MOST_GROUPS, 0, -1) if outputs % (groups * WGMMA_OUTPUTS) == 0)
    return next(dividing, min(outputs // WGMMA_OUTPUTS, MOST_GROUPS))


def _up(rows: int) -> int:
    return -(-rows // ROW_TILE) * ROW_TILE
