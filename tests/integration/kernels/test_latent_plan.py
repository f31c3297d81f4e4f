"""How latent attention is divided between thread blocks, against what it is for: everything once, nothing twice, equal shares."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.ragged_paged_attention.mosaic_gpu_latent_plan import BLOCK_KEYS, LatentShape, Merges, Units, plan

ROWS, TOKENS, PAGES_PER_ROW = 5, 24, 200


@cache
def planned(heads: int, wanted: int) -> tuple[LatentShape, Any]:
    shape = LatentShape(TOKENS, ROWS, heads, 96, 64, 16, PAGES_PER_ROW, 0.1, 2, wanted)
    return shape, jax.jit(partial(plan, shape=shape))


def divide(rows: list[tuple[int, int]], heads: int, wanted: int) -> tuple[LatentShape, Units, Merges]:
    start, length = np.full(ROWS + 1, sum(count for count, _ in rows), np.int32), np.zeros(ROWS, np.int32)
    start[: len(rows) + 1] = np.cumsum([0, *(count for count, _ in rows)])
    length[: len(rows)] = [keys for _, keys in rows]
    shape, call = planned(heads, wanted)
    units, merges = jax.device_get(call(start, length))
    return shape, units, merges


row = st.tuples(st.integers(0, 4), st.integers(0, 3100)).map(lambda x: (x[0], x[0] + x[1] if x[0] else 0))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(row, max_size=ROWS), st.sampled_from([8, 32, 128]), st.sampled_from([1, 7]))
def test_every_token_meets_every_block_of_its_keys_once(rows: list[tuple[int, int]], heads: int, wanted: int) -> None:
    shape, units, merges = divide(rows, heads, wanted)
    met: dict[int, list[int]] = {token: [] for token in range(TOKENS)}
    slots: dict[int, tuple[int, int]] = {}
    whole: set[int] = set()
    for unit in range(shape.units):
        token, first, last = (int(array[unit]) for array in (units.token, units.first, units.last))
        if first == last:
            continue
        assert 0 <= token <= first < last <= min(token + shape.group, TOKENS)
        blocks = range(units.block[unit], units.block[unit] + units.blocks[unit])
        for each in range(first, last):
            met[each].extend(blocks)
        if units.slot[unit] < 0:
            assert whole.isdisjoint(range(first, last))
            whole.update(range(first, last))
        else:
            assert 0 <= units.slot[unit] < shape.partials
            assert units.slot[unit] not in slots
            slots[int(units.slot[unit])] = (first, last)
    merged: set[int] = set()
    for number in range(merges.parts.shape[0]):
        for slot in range(merges.slot[number], merges.slot[number] + merges.parts[number]):
            assert slots.pop(slot) == (int(merges.first[number]), int(merges.last[number]))
            merged.update(range(merges.first[number], merges.last[number]))
    assert not slots
    assert whole.isdisjoint(merged)
    assert whole | merged == set(range(TOKENS))
    token = 0
    for count, keys in rows:
        for position in range(keys - count, keys):
            # The last tokens of a tile may need a block more than the first.
            assert sorted(met[token]) == list(range(len(met[token])))
            assert len(met[token]) * BLOCK_KEYS > position
            token += 1
    assert all(not met[padding] for padding in range(token, TOKENS))


def test_a_long_row_is_cut_and_short_ones_are_not() -> None:
    shape, units, merges = divide([(1, 3000), (1, 100), (1, 100)], heads=64, wanted=8)
    assert shape.parted
    assert sorted(units.blocks[units.last > units.first])[-9:] == [2, 2, 5, 7, 7, 7, 7, 7, 7]
    assert merges.parts.tolist()[:2] == [7, 0]


def test_short_contexts_need_no_merging() -> None:
    shape = LatentShape(64, 64, 16, 576, 512, 16, 16, 0.1, 2, 264)
    assert not shape.parted
    assert (shape.merges, shape.units) == (0, shape.groups)
