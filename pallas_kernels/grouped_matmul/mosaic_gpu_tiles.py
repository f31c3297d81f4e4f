"""Sizes of the Mosaic GPU kernel of grouped_matmul. None was measured yet: they follow from registers and shared memory.

A row tile belongs to one group, so a group wastes half a tile on average: 64 rows are the fewest that wgmma multiplies. Tiles of
128 rows read the weights half as often; they waste an eighth where groups have 512 rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels.grouped_matmul.problem import GroupedProblem

WGMMA_ROWS = 64
STEP = 64  # of I at a time: 128 bytes, the widest swizzle
MULTIPROCESSORS = 132
SHARED_BYTES = 216 * 1024
MOST_SLOTS = 6
MANY_ROWS = 512  # a group, from which on tiles have 128 rows
MOST_PANEL = 12  # column tiles that row tiles pass before the next ones: about as many as row tiles are then at work
_FEW_ROWS_COLUMNS = ((2, 128), (1, 192), (2, 64), (1, 64))  # warpgroups side by side, columns of each
_MANY_ROWS_COLUMNS = (256, 192, 128, 64)


@dataclass(frozen=True)
class Tiles:
    """How the result is divided; static arguments of the kernel.

    Attributes:
        row_groups: warpgroups below each other, 64 rows each.
        column_groups: warpgroups beside each other.
        columns: of a warpgroup.
        slots: steps of rows and weights in shared memory.
        panel: column tiles that are done for all rows before the next ones.
        programs: thread blocks; each takes every so manieth tile.
    """

    row_groups: int
    column_groups: int
    columns: int
    slots: int
    panel: int
    programs: int

    @property
    def rows(self) -> int:
        return self.row_groups * WGMMA_ROWS

    @property
    def width(self) -> int:
        return self.column_groups * self.columns

    @property
    def groups(self) -> int:
        """Warpgroups that multiply."""
        return self.row_groups * self.column_groups


def choose_tiles(problem: GroupedProblem, programs: int = MULTIPROCESSORS) -> Tiles:
    """The tiles for a problem whose widths are multiples of 64."""
    if problem.expected_rows >= MANY_ROWS * problem.groups:
        row_groups, column_groups = 2, 1
        columns = next(columns for columns in _MANY_ROWS_COLUMNS if problem.outputs % columns == 0)
    else:
        row_groups = 1
        column_groups, columns = next(pair for pair in _FEW_ROWS_COLUMNS if problem.outputs % (pair[0] * pair[1]) == 0)
    item, groups = problem.dtype.itemsize, row_groups * column_groups
    step = (row_groups * WGMMA_ROWS + column_groups * columns) * STEP * item
    staged = groups * WGMMA_ROWS * STAGED_COLUMNS * problem.result_dtype.itemsize
    slots = min(MOST_SLOTS, (SHARED_BYTES - staged) // step)
    tiles = problem.outputs // (column_groups * columns)
    panel = max(size for size in range(1, MOST_PANEL + 1) if tiles % size == 0)
    return Tiles(row_groups, column_groups, columns, slots, panel, programs)


STAGED_COLUMNS = 64  # of the result on its way out of a warpgroup's registers


def most_row_tiles(rows: int, groups: int, tile: int) -> int:
    """The most tiles that groups with `rows` rows in all can have; each begins up to seven rows before its first one."""
    begun = min(groups, rows)
    return (rows + 7 * begun) // tile + begun
