"""Sizes of the Mosaic GPU kernel of grouped_matmul with narrow numbers. None was measured yet.

A step of few tokens takes as long as its experts' matrices take to read, so a group's rows should be one tile: its matrix is then
read once. A tile of more rows costs rows of x in shared memory, and products that a GPU has to spare.
"""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels.grouped_matmul.mosaic_gpu_tiles import MOST_PANEL, MULTIPROCESSORS, SHARED_BYTES
from pallas_kernels.grouped_matmul.problem import GroupedProblem
from pallas_kernels.matmul.mosaic_gpu_numbers import Numbers
from pallas_kernels.matmul.mosaic_gpu_tiles import (
    MOST_GROUPS,
    MOST_ROWS,
    MOST_ROWS_OF_FACTORS,
    MOST_SLOTS,
    ROW_TILE,
    STAGED_ROWS,
    WGMMA_OUTPUTS,
)
from pallas_kernels.matmul.words import BLOCK_INPUTS


@dataclass(frozen=True)
class WordTiles:
    """How the result is divided; static arguments of the kernel.

    Attributes:
        groups: warpgroups beside each other, 64 outputs each.
        rows: of x in a tile, a multiple of 8.
        steps: of 128 inputs.
        held: rows of scales that a matrix has.
        missing: factors that the last step's block lacks; see `sum_steps`.
        slots: steps in shared memory.
        panel: tiles of outputs that are done for all rows before the next ones.
        programs: thread blocks; each takes every so manieth tile.
    """

    groups: int
    rows: int
    steps: int
    held: int
    missing: int
    slots: int
    panel: int
    programs: int

    @property
    def outputs(self) -> int:
        """Of a thread block."""
        return self.groups * WGMMA_OUTPUTS

    @property
    def staged(self) -> int:
        """Rows that are written at once at most, a divisor of all."""
        return next(rows for rows in range(min(self.rows, STAGED_ROWS), 0, -ROW_TILE) if self.rows % rows == 0)


def choose_tiles(problem: GroupedProblem, numbers: Numbers, programs: int = MULTIPROCESSORS) -> WordTiles:
    """The tiles for a problem that the kernel supports."""
    groups = next(groups for groups in range(MOST_GROUPS, 0, -1) if problem.outputs % (groups * WGMMA_OUTPUTS) == 0)
    rows = _rows(problem, MOST_ROWS if numbers.factors == 1 else MOST_ROWS_OF_FACTORS)
    steps = -(-problem.inputs // BLOCK_INPUTS)
    held = 1 if numbers.group is None else problem.inputs // numbers.group
    missing = steps * numbers.factors - held if numbers.group is not None and numbers.group <= BLOCK_INPUTS else 0
    staged = groups * min(rows, STAGED_ROWS) * WGMMA_OUTPUTS * 4
    factors = 0 if numbers.group is None else numbers.factors * (1 + numbers.zeros)
    step = rows * BLOCK_INPUTS * 2 + groups * WGMMA_OUTPUTS * (BLOCK_INPUTS * numbers.bits // 8 + factors * 4)
    slots = min(MOST_SLOTS, (SHARED_BYTES - staged) // step)
    tiles = problem.outputs // (groups * WGMMA_OUTPUTS)
    panel = max(size for size in range(1, MOST_PANEL + 1) if tiles % size == 0)
    return WordTiles(groups, rows, steps, held, missing, slots, panel, programs)


def _rows(problem: GroupedProblem, most: int) -> int:
    """Twice a group's share, and what it may begin before its first row, so that few groups have more than a tile."""
    if problem.rows <= ROW_TILE:
        return ROW_TILE
    share = -(-problem.expected_rows // problem.groups)
    return min(-(-2 * share // ROW_TILE) * ROW_TILE + ROW_TILE, most)
