"""How latent attention is divided between thread blocks: computed by XLA from the batch, once a step for all layers.

A tile is 64 rows, pairs of a token and a query head; the tokens of its group are consecutive ones of one row of the batch.
Keys are counted in blocks of 64. A group with many blocks is cut into parts, so that every thread block has about as much to
do, however unequal the rows are: the parts of a step are about as many as wanted, more only where there are more groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

TILE_ROWS = 64  # of a wgmma
BLOCK_KEYS = 64
LEAST_BLOCKS = 4  # of keys in a part: a part costs as much traffic as four blocks of keys


@dataclass(frozen=True)
class LatentShape:
    """Static arguments of the kernels.

    Attributes:
        tokens: T, at least `group`.
        rows: R.
        heads: query heads with padding: 8, 16, 32, or a multiple of 64.
        dim: D, of a latent.
        value_dim: of its part that is the value.
        page_size: S; divides BLOCK_KEYS.
        pages_per_row: M.
        scale: multiplies the scores.
        slots: blocks of keys in shared memory.
        wanted: parts that all groups together should have.
    """

    tokens: int
    rows: int
    heads: int
    dim: int
    value_dim: int
    page_size: int
    pages_per_row: int
    scale: float
    slots: int
    wanted: int

    @property
    def group(self) -> int:
        """Tokens of a tile."""
        return max(1, TILE_ROWS // self.heads)

    @property
    def tiles(self) -> int:
        """Tiles of a group."""
        return max(1, self.heads // TILE_ROWS)

    @property
    def groups(self) -> int:
        """The most groups that a batch has; those of padding tokens too."""
        return min(self.tokens, self.tokens // self.group + self.rows + 1)

    @property
    def units(self) -> int:
        """The most parts that they have: at most one more each than their share."""
        return self.groups + (self.wanted if self.parted else 0)

    @property
    def parted(self) -> bool:
        """Whether a row can be long enough to be cut."""
        blocks = -(-self.pages_per_row * self.page_size // BLOCK_KEYS)
        return 2 * blocks >= 3 * LEAST_BLOCKS

    @property
    def partials(self) -> int:
        """The most parts of groups that are cut: a share that is rounded up to two parts or more is at least 3/4 of them."""
        return -(-self.wanted * 4 // 3) if self.parted else 1

    @property
    def merges(self) -> int:
        """The most groups that are cut."""
        return min(self.groups, self.partials // 2) if self.parted else 0


class Units(NamedTuple):
    """What thread blocks do, int32 [units] each.

    Attributes:
        row: of the page table.
        token: the first one that is loaded, so that a whole tile is in memory.
        first, last: the tokens that count; none for a unit that is skipped.
        shift: from a token to its position in its row.
        length: keys of the row; after them memory may hold anything.
        block, blocks: of keys.
        slot: where the partial result goes; -1 if it is the whole.
    """

    row: jax.Array
    token: jax.Array
    first: jax.Array
    last: jax.Array
    shift: jax.Array
    length: jax.Array
    block: jax.Array
    blocks: jax.Array
    slot: jax.Array


class Merges(NamedTuple):
    """Groups that are cut, int32 [merges] each: tokens as in Units, the first of the slots, and how many; 0 for none."""

    token: jax.Array
    first: jax.Array
    last: jax.Array
    slot: jax.Array
    parts: jax.Array


def plan(query_start: jax.Array, kv_length: jax.Array, shape: LatentShape) -> tuple[Units, Merges]:
    """Divide a batch; see api.py for its arrays. Padding tokens are groups without keys, whose result is 0."""
    ends = jnp.append(query_start[1:], jnp.int32(shape.tokens))
    lengths = jnp.append(kv_length, jnp.int32(0))
    in_row = -(-(ends - query_start) // shape.group)
    row, number, live = _members(in_row, shape.groups)
    first = query_start[row] + number * shape.group
    last = jnp.where(live, jnp.minimum(first + shape.group, ends[row]), first)
    shift = lengths[row] - ends[row]
    blocks = jnp.where(live, jnp.maximum(-(-(last + shift) // BLOCK_KEYS), 0), 0)
    share = jnp.maximum(-(-jnp.sum(blocks) // shape.wanted), LEAST_BLOCKS)
    parts = jnp.where(live, jnp.maximum((2 * blocks + share) // (2 * share), 1), 0)
    cut = jnp.where(parts > 1, parts, 0)
    slot = jnp.cumsum(cut) - cut
    token = jnp.minimum(first, shape.tokens - shape.group)

    group, part, used = _members(parts, shape.units)
    each = -(-blocks // jnp.maximum(parts, 1))[group]
    units = Units(
        row=jnp.minimum(row, shape.rows - 1)[group],
        token=token[group],
        first=first[group],
        last=jnp.where(used, last[group], first[group]),
        shift=shift[group],
        length=lengths[row][group],
        block=part * each,
        blocks=jnp.clip(blocks[group] - part * each, 0, each),
        slot=jnp.where(cut[group] > 0, slot[group] + part, -1),
    )
    merged, _, real = _members((cut > 0).astype(jnp.int32), max(shape.merges, 1))
    counts = jnp.where(real, parts[merged], 0)
    return units, Merges(token[merged], first[merged], last[merged], slot[merged], counts)


def _members(counts: jax.Array, total: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Lay out sets of `counts` members one after another: the set of each, its number in it, whether there is one; [total]."""
    before = jnp.cumsum(counts) - counts
    member = jnp.arange(total, dtype=jnp.int32)
    owner = jnp.repeat(jnp.arange(counts.shape[0], dtype=jnp.int32), counts, total_repeat_length=total)
    return owner, member - before[owner], member < jnp.sum(counts)
