"""Sizes of the Mosaic GPU kernels, one entry a kind of device, and the shared memory that they make.

None was measured yet. They follow from the shared memory of a multiprocessor (228 KB on Hopper, 227 of them for one block,
1 reserved a block) and from Little's law: 3.35 TB/s over 132 multiprocessors at about 1 us under load is 25 KB in flight
each on an H100, 4.8 TB/s 36 KB on an H200; twice that is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from pallas_kernels.ragged_paged_attention.mosaic_gpu_softmax import BLOCK_KEYS, WGMMA_ROWS, leaving_columns

ITEM_BYTES = 2  # bf16 and f16
SCALE_BYTES = 4  # of float32, the widest of scales
SUM_BYTES = 4  # of float32
PREFILL_STAGES = 2  # of keys, and as many of values, in 8 bits: loads in flight while others are widened
MOST_SLOTS = 12  # of keys and values together: the first loads of each are written out, and more hide nothing


@dataclass(frozen=True)
class Tiles:
    """Sizes for one kind of device.

    Attributes:
        multiprocessors: thread blocks of a decode.
        decode_workers: warpgroups of a decode block that compute, where shared memory is enough for their loads.
        least_blocks: of 64 keys, below which a worker's share of a decode is not cut.
        decode_bytes: buffers of a decode block, which has a multiprocessor to itself.
        block_bytes: likewise of a prefill block.
        merge_bytes: buffers of a block that merges, where there is no more than one a multiprocessor.
        prefill_groups: warpgroups of a prefill block that compute, 64 rows each.
    """

    multiprocessors: int
    decode_workers: int
    least_blocks: int
    decode_bytes: int
    block_bytes: int
    merge_bytes: int
    prefill_groups: int


HOPPER = Tiles(
    multiprocessors=132,
    decode_workers=2,
    least_blocks=4,
    decode_bytes=224 * 1024,
    block_bytes=216 * 1024,
    merge_bytes=216 * 1024,
    prefill_groups=2,
)
# An interpreter runs one block after the other: few of them, each with several pieces.
INTERPRETED = replace(HOPPER, multiprocessors=2, least_blocks=1)


class DecodeSlots(NamedTuple):
    """What a decode block has: workers, and blocks of keys and of values of each in shared memory."""

    workers: int
    keys: int
    values: int


def decode_slots(dim: int, stored_bytes: int, tiles: Tiles) -> DecodeSlots:
    """Return how the shared memory of a decode block is divided.

    Args:
        dim: D.
        stored_bytes: of a number in the cache.
        tiles: sizes of the device.
    """
    tile = BLOCK_KEYS * dim * stored_bytes
    fixed = WGMMA_ROWS * (dim * ITEM_BYTES + leaving_columns(dim) * SUM_BYTES)
    if stored_bytes < ITEM_BYTES:
        tile += BLOCK_KEYS * SCALE_BYTES
        fixed += 2 * BLOCK_KEYS * dim * ITEM_BYTES  # what a block of each is widened into
    workers = tiles.decode_workers
    slots = (tiles.decode_bytes // workers - fixed) // tile
    if slots < 4:  # too few to hide anything: the multiprocessor is for one worker
        workers, slots = 1, (tiles.decode_bytes - fixed) // tile
    slots = min(slots, MOST_SLOTS)
    return DecodeSlots(workers, slots - slots // 2, slots // 2)


def merge_depth(blocks: int, dim: int, tiles: Tiles) -> int:
    """Return how many chunks of pieces a merging block loads ahead, of `blocks` blocks in all.

    Few blocks have many pieces to read, and the multiprocessors to themselves; many have few.
    """
    if blocks > tiles.multiprocessors:
        return 1
    return max(1, min(4, tiles.merge_bytes // (WGMMA_ROWS * dim * SUM_BYTES) - 1))


def prefill_slots(dim: int, stored_bytes: int, tiles: Tiles) -> tuple[int, int]:
    """Return how many blocks of keys, and as many of values, a prefill block keeps in shared memory.

    Returns:
        Those that are ready to be multiplied, and those that are to be widened, of which a cache in 8 bits has PREFILL_STAGES.
    """
    ready = 2 * BLOCK_KEYS * dim * ITEM_BYTES
    fixed = tiles.prefill_groups * WGMMA_ROWS * dim * ITEM_BYTES
    stages = 0 if stored_bytes == ITEM_BYTES else PREFILL_STAGES
    fixed += stages * 2 * BLOCK_KEYS * (dim * stored_bytes + SCALE_BYTES)
    return min(4, (tiles.block_bytes - fixed) // ready), stages
