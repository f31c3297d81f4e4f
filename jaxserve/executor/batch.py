"""A plan padded to a bucket: the arrays that one step reads. Warm-up and serving both come through `make_batch`.

Padding rows have no queries, no keys and the spare slot; padding tokens write to the null page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxserve.executor.buckets import Bucket
from jaxserve.sampling.batch import SamplingBatch
from jaxserve.scheduler.plan import Plan


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """Inputs of a step in a bucket of T tokens and R rows; fresh arrays, owned by their step. All replicated.

    Attributes:
        tokens: int32[T]; -1-s stands for the token last sampled in slot s.
        positions: int32[T], each token's place in its sequence.
        kv_slots: int32[groups,T], page * page_size + offset where its key and value go in the layers of a group; 0 for padding.
        query_start: int32[R+1], first token of each row.
        kv_length: int32[R], keys of each row, this step's included; 0 for padding.
        page_table: int32[groups,R,M], pages of each row; 0 for padding.
        sampling: parameters, [R].
        samples: bool[R], rows that choose a token.
    """

    tokens: jax.Array
    positions: jax.Array
    kv_slots: jax.Array
    query_start: jax.Array
    kv_length: jax.Array
    page_table: jax.Array
    sampling: SamplingBatch
    samples: jax.Array


def make_batch(plan: Plan, bucket: Bucket, *, max_pages: int, page_size: int, spare_slot: int, groups: int = 1) -> DeviceBatch:
    """Pad a plan. `max_pages` is M, the pages of the longest sequence in each of the `groups` of layers."""
    rows, tokens = plan.num_rows, plan.num_tokens
    counts = np.diff(plan.query_start)
    row_of_token = np.repeat(np.arange(rows, dtype=np.int32), counts)
    # A row's tokens are its last ones: position = kv_length - (row's end - token's index).
    positions = (plan.kv_length - plan.query_start[1:])[row_of_token] + np.arange(tokens, dtype=np.int32)
    page_table = np.zeros((groups, bucket.rows, max_pages), np.int32)
    kv_slots = np.zeros((groups, bucket.tokens), np.int32)
    columns, offsets = positions // page_size, positions % page_size
    for group in range(groups):
        pages = plan.page_table[:, group::groups]
        page_table[group, :rows, : pages.shape[1]] = pages
        kv_slots[group, :tokens] = pages[row_of_token, columns] * page_size + offsets
    query_start = np.full(bucket.rows + 1, tokens, np.int32)
    query_start[: rows + 1] = plan.query_start
    arrays: dict[str, Any] = {
        "tokens": _pad(plan.tokens, bucket.tokens, 0),
        "positions": _pad(positions, bucket.tokens, 0),
        "kv_slots": kv_slots,
        "query_start": query_start,
        "kv_length": _pad(plan.kv_length, bucket.rows, 0),
        "page_table": page_table,
        "sampling": _sampling_batch(plan, bucket.rows, spare_slot),
        "samples": _pad(plan.samples, bucket.rows, False),
    }
    return DeviceBatch(**arrays)


def _sampling_batch(plan: Plan, rows: int, spare_slot: int) -> SamplingBatch:
    """Pad the sampling parameters; flags say what no row needs. Rows that do not sample count as padding."""
    given = plan.sampling
    random = plan.samples & (given.temperature > 0)
    truncated = (given.top_k > 0) | (given.top_p < 1) | (given.min_p > 0)
    penalized = (given.presence != 0) | (given.frequency != 0) | (given.repetition != 1)
    arrays: dict[str, Any] = {
        "temperature": _pad(given.temperature, rows, 0),
        "top_k": _pad(given.top_k, rows, 0),
        "top_p": _pad(given.top_p, rows, 1),
        "min_p": _pad(given.min_p, rows, 0),
        "presence": _pad(given.presence, rows, 0),
        "frequency": _pad(given.frequency, rows, 0),
        "repetition": _pad(given.repetition, rows, 1),
        "key": _pad(given.key, rows, 0),
        "suppress": _pad(given.suppress, rows, -1),
        "position": _pad(plan.kv_length, rows, 0),
        "has_bias": _pad(plan.samples & given.has_bias, rows, False),
        "slot": _pad(np.where(plan.samples, plan.slots, np.int32(spare_slot)), rows, spare_slot),
        "any_random": np.array(random.any()),
        "any_truncated": np.array((random & truncated).any()),
        "any_penalty": np.array((plan.samples & penalized).any()),
        "any_suppressed": np.array((plan.samples & (given.suppress[:, 0] >= 0)).any()),
        "any_logprobs": np.array((plan.samples & (given.num_logprobs >= 0)).any()),
    }
    return SamplingBatch(**arrays)


def _pad(values: np.ndarray[Any, Any], size: int, fill: object) -> np.ndarray[Any, Any]:
    """A copy of `values` lengthened along its first axis."""
    out = np.full((size, *values.shape[1:]), fill, values.dtype)
    out[: len(values)] = values
    return out
