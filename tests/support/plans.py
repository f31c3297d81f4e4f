"""Plans by hand, for executors."""

from typing import Any

import jax
import numpy as np

from jaxserve.sampling.options import MASKED, NUM_LOGPROBS, TEMPERATURE
from jaxserve.step.batch import DeviceBatch, PackedBatch, make_batch
from jaxserve.step.buckets import Bucket
from jaxserve.step.example import Row, example_plan
from jaxserve.step.page_tables import PageTables, most_changes, put_table
from jaxserve.step.plan import MoveKind, PageMove, Plan


def make_plan(*rows: Row, temperature: float = 0.0, num_logprobs: int = -1, masked: int = 0, **more: Any) -> Plan:
    """A plan of rows of (tokens computed, tokens in the cache after the step, pages)."""
    return example_plan(*rows, values={TEMPERATURE: temperature, NUM_LOGPROBS: num_logprobs, MASKED: masked}, **more)


def device_batch(
    plan: Plan, bucket: Bucket, *, page_size: int, max_pages: int, slots: int = 0, groups: int = 1, lengths: Any = None
) -> DeviceBatch:
    """What a plan becomes on a device whose slots had other sequences before, and knows no row's length but those given."""
    slots = max(slots, plan.num_rows)
    tables: Any = np.ones((groups, slots + 1, max_pages), np.int32)
    tables[:, slots] = 0
    most = most_changes(bucket.tokens, bucket.rows, groups, page_size)
    changes = PageTables(slots, groups, max_pages).changes(plan, most)
    for slot, table in changes.whole:
        tables = _put_table(tables, np.int32(slot), np.asarray(table))
    packed = make_batch(plan, bucket, changes, table_shape=(groups, slots + 1, max_pages), page_size=page_size)
    batch: DeviceBatch = _unpacked(packed, tables, np.zeros(slots + 1, np.int32) if lengths is None else lengths)
    return batch


_put_table = jax.jit(put_table)


@jax.jit
def _unpacked(packed: PackedBatch, tables: jax.Array, lengths: jax.Array) -> DeviceBatch:
    return packed.unpacked(lengths, packed.changed(tables))


Pairs = tuple[tuple[int, int], ...]


def copied(*pairs: tuple[int, int]) -> tuple[PageMove, ...]:
    """Moves from page to page."""
    return tuple(PageMove(MoveKind.COPY, *pair) for pair in pairs)


def swapped_out(*pairs: tuple[int, int]) -> tuple[PageMove, ...]:
    """Moves from page to swap slot."""
    return tuple(PageMove(MoveKind.TO_TIER, *pair) for pair in pairs)


def swapped_in(*pairs: tuple[int, int]) -> tuple[PageMove, ...]:
    """Moves from swap slot to page."""
    return tuple(PageMove(MoveKind.FROM_TIER, *pair) for pair in pairs)


def moved(plan: Plan, kind: MoveKind) -> Pairs:
    """(source, destination) of the plan's moves of a kind."""
    return tuple((move.source, move.destination) for move in plan.moves if move.kind is kind)
