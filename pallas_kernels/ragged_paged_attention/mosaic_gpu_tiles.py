"""Sizes of the Mosaic GPU kernels, one entry a kind of device, and the shared memory that they make.

None was measured yet. They follow from the shared memory of a multiprocessor (228 KB on Hopper, 227 of them for one block,
1 reserved a block) and from Little's law: 3.35 TB/s over 132 multiprocessors at about 1 us under load is 25 KB in flight
each on an H100, 4.8 TB/s 36 KB on an H200; twice that is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels.ragged_paged_attention.mosaic_gpu_softmax import BLOCK_KEYS, WGMMA_ROWS

ITEM_BYTES = 2  # bf16 and f16
SCALE_BYTES = 4  # of float32, the widest of scales
PREFILL_STAGES = 2  # of keys, and as many of values, in float8: loads in flight while others are widened
MOST_SLOTS = 12  # of keys and values together: the first loads of each are written out, and more hide nothing


@dataclass(frozen=True)
class Tiles:
    """Sizes for one kind of device.

    Attributes:
        half_block_bytes: buffers of a decode block when two share a multiprocessor.
        block_bytes: buffers of a block that has a multiprocessor to itself.
        decode_blocks: thread blocks that a decode aims at, by splitting rows: some waves, so that unequal rows even out.
        split_keys: keys below which a row is not split further.
        prefill_groups: warpgroups of a prefill block that compute, 64 rows each.
    """

    half_block_bytes: int
    block_bytes: int
    decode_blocks: int
    split_keys: int
    prefill_groups: int


HOPPER = Tiles(
    half_block_bytes=108 * 1024,
    block_bytes=216 * 1024,
    decode_blocks=132 * 2 * 4,
    split_keys=256,
    prefill_groups=2,
)


def decode_slots(dim: int, stored_bytes: int, tiles: Tiles) -> tuple[int, int]:
    """Return how many blocks of keys and of values a decode block keeps in shared memory.

    Args:
        dim: D.
        stored_bytes: of a number in the cache.
        tiles: sizes of the device.
    """
    tile, fixed = BLOCK_KEYS * dim * stored_bytes, WGMMA_ROWS * (dim + BLOCK_KEYS) * ITEM_BYTES
    if stored_bytes < ITEM_BYTES:
        tile += BLOCK_KEYS * SCALE_BYTES
        fixed += 2 * BLOCK_KEYS * dim * ITEM_BYTES  # what a block of each is widened into
    slots = (tiles.half_block_bytes - fixed) // tile
    if slots < 4:  # too few to hide anything: the multiprocessor is for one block
        slots = (tiles.block_bytes - fixed) // tile
    slots = min(slots, MOST_SLOTS)
    return slots - slots // 2, slots // 2


def decode_splits(items: int, kv_heads: int, keys: int, tiles: Tiles) -> int:
    """Return into how many parts each of `items` rows of at most `keys` keys is divided."""
    wanted = tiles.decode_blocks // (items * kv_heads)
    return max(1, min(wanted, keys // tiles.split_keys))


def prefill_slots(dim: int, stored_bytes: int, tiles: Tiles) -> tuple[int, int]:
    """Return how many blocks of keys, and as many of values, a prefill block keeps in shared memory.

    Returns:
        Those that are ready to be multiplied, and those that are to be widened, of which a cache in float8 has PREFILL_STAGES.
    """
    ready = 2 * BLOCK_KEYS * dim * ITEM_BYTES
    fixed = tiles.prefill_groups * WGMMA_ROWS * (dim + BLOCK_KEYS) * ITEM_BYTES
    stages = 0 if stored_bytes == ITEM_BYTES else PREFILL_STAGES
    fixed += stages * 2 * BLOCK_KEYS * (dim * stored_bytes + SCALE_BYTES)
    return min(4, (tiles.block_bytes - fixed) // ready), stages
