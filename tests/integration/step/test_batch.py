"""A plan padded to its bucket, against a loop over its tokens."""

from dataclasses import fields

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.sampling.options import STANDARD
from jaxserve.step.buckets import Bucket
from jaxserve.step.plan import Plan
from tests.support.plans import device_batch

MAX_PAGES, SLOTS = 8, 12
BUCKET = Bucket(tokens=200, rows=8)  # holds all plans
LENGTHS = np.arange(1, SLOTS + 2, dtype=np.int32)  # tokens of the sequence in each slot


def column(data, rows, values, dtype):
    return np.array(data.draw(st.lists(st.sampled_from(values), min_size=rows, max_size=rows)), dtype)


VALUES = {
    "temperature": [0, 0.5],
    "top_k": [0, 0, 3],
    "top_p": [1, 1, 0.5],
    "min_p": [0, 0, 0.1],
    "typical_p": [1, 1, 0.5],
    "top_n_sigma": [0, 0, 1.5],
    "presence": [0, 0, 0, 1],
    "frequency": [0, 0, 0, -1],
    "repetition": [1, 1, 1, 2],
    "num_logprobs": [-1, -1, 0, 4],
    "num_processed": [-1, -1, 0, 4],
    "has_bias": [0, 0, 1],
    "masked": [0, 0, 0, 1],
}


def sampling_rows(data, rows):
    words = np.tile(STANDARD.neutral, (rows, 1))
    for name, values in VALUES.items():
        column_of = STANDARD.column(words, name)
        column_of[:] = column(data, rows, values, column_of.dtype)
    STANDARD.column(words, "suppress")[:, 0] = column(data, rows, [-1, -1, 5], np.int32)
    STANDARD.column(words, "key")[:] = [column(data, 2, [1, 2**32 - 1], np.uint32) for _ in range(rows)]
    return words


@st.composite
def plans(draw, groups=1):
    """A plan, its page size, and for each row (first position, tokens, pages); pages of `groups` follow one another.

    A row that begins with what its slot sampled last is where LENGTHS says, and the plan may take it to be further.
    """
    data = draw(st.data())
    size = draw(st.sampled_from([1, 3, 4]))
    count = draw(st.integers(1, 6))
    rows = []
    slots = draw(st.permutations(range(SLOTS)))[:count]
    behind = []
    for slot in slots:
        length = draw(st.integers(1, MAX_PAGES * size))
        new = draw(st.integers(1, length))
        held = -(-length // size) * groups
        pages = draw(st.lists(st.integers(1, 99), min_size=held, max_size=held))
        tokens = draw(st.lists(st.integers(-SLOTS, 500), min_size=new, max_size=new))
        tokens[0] = abs(tokens[0])
        start = length - new
        if LENGTHS[slot] <= start and draw(st.booleans()):
            tokens[0] = -1 - slot
            start = int(LENGTHS[slot]) - 1
        behind.append(length - new - start)
        rows.append((start, tokens, pages))
    table = np.zeros((count, max(len(pages) for _, _, pages in rows)), np.int32)
    for number, (_, _, pages) in enumerate(rows):
        table[number, : len(pages)] = pages
    plan = Plan(
        step=3,
        ids=tuple(str(number) for number in range(count)),
        slots=np.array(slots, np.int32),
        tokens=np.concatenate([tokens for _, tokens, _ in rows]).astype(np.int32),
        query_start=np.cumsum([0, *(len(tokens) for _, tokens, _ in rows)]).astype(np.int32),
        kv_length=np.array([start + len(row) + more for (start, row, _), more in zip(rows, behind, strict=True)], np.int32),
        page_table=table,
        samples=column(data, count, [False, True], np.bool_),
        num_drafts=np.zeros(count, np.int32),
        sampling=sampling_rows(data, count),
    )
    return plan, size, rows


def batch_of(plan, size, groups=1):
    return device_batch(plan, BUCKET, page_size=size, max_pages=MAX_PAGES, slots=SLOTS, groups=groups, lengths=LENGTHS)


@settings(deadline=None)
@given(plans())
def test_tokens_against_a_loop(given_plan):
    plan, size, rows = given_plan
    batch = batch_of(plan, size)
    wanted: dict[str, list[int]] = {"tokens": [], "positions": []}
    for start, tokens, _ in rows:
        for offset, token in enumerate(tokens):
            position = start + offset
            wanted["tokens"].append(token)
            wanted["positions"].append(position)
    for name, values in wanted.items():
        array = getattr(batch, name)
        assert array.dtype == np.int32
        assert array.tolist() == values + [0] * (BUCKET.tokens - len(values)), name


@settings(deadline=None)
@given(plans())
def test_rows_against_a_loop(given_plan):
    plan, size, rows = given_plan
    batch = batch_of(plan, size)
    spare = BUCKET.rows - len(rows)
    ends = np.cumsum([len(tokens) for _, tokens, _ in rows]).tolist()
    assert batch.query_start.tolist() == [0, *ends, *[ends[-1]] * spare], "a padding row has no tokens"
    assert batch.kv_length.tolist() == [start + len(tokens) for start, tokens, _ in rows] + [0] * spare
    assert batch.rows.samples.tolist() == plan.samples.tolist() + [False] * spare
    assert batch.rows.sampling.position.tolist() == batch.kv_length.tolist()
    slots = [slot if sample else SLOTS for slot, sample in zip(plan.slots.tolist(), plan.samples.tolist(), strict=True)]
    assert batch.rows.sampling.slot.tolist() == slots + [SLOTS] * spare, "rows that do not sample write to the spare slot"


@settings(deadline=None)
@given(st.integers(1, 3).flatmap(lambda groups: st.tuples(st.just(groups), plans(groups))))
def test_pages_of_groups_against_a_loop(drawn):
    groups, (plan, size, rows) = drawn
    batch = batch_of(plan, size, groups=groups)
    assert (batch.page_table.dtype, batch.kv_slots.dtype) == (np.int32, np.int32)
    assert (len(batch.page_table), len(batch.kv_slots)) == (groups, groups)
    for group, (table, slots) in enumerate(zip(batch.page_table.tolist(), batch.kv_slots.tolist(), strict=True)):
        mine = [pages[group::groups] for _, _, pages in rows]
        wanted = [
            pages[position // size] * size + position % size
            for pages, (start, tokens, _) in zip(mine, rows, strict=True)
            for position in range(start, start + len(tokens))
        ]
        assert slots == wanted + [0] * (BUCKET.tokens - len(wanted))
        padded = [pages + [0] * (MAX_PAGES - len(pages)) for pages in mine]
        assert table == padded + [[0] * MAX_PAGES] * (BUCKET.rows - len(rows))


NEUTRAL = {
    **{"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0, "presence": 0, "frequency": 0, "repetition": 1},
    **{"typical_p": 1, "top_n_sigma": 0, "key": 0, "has_bias": 0, "num_logprobs": -1, "suppress": -1, "masked": 0},
    "num_processed": -1,
}


@settings(deadline=None)
@given(plans())
def test_options_and_their_padding(given_plan):
    plan, size, _ = given_plan
    batch = batch_of(plan, size)
    rows = plan.num_rows
    assert set(NEUTRAL) == set(STANDARD.names)
    for name, fill in NEUTRAL.items():
        array, given = STANDARD.column(batch.rows.sampling.words, name), STANDARD.column(plan.sampling, name)
        np.testing.assert_array_equal(array[:rows], given)
        assert (array[rows:] == fill).all()


@settings(deadline=None)
@given(plans())
def test_flags_tell_what_any_sampling_row_needs(given_plan):
    plan, size, _ = given_plan
    batch = batch_of(plan, size)
    given = {name: STANDARD.column(plan.sampling, name) for name in STANDARD.names}
    needs = dict.fromkeys(("random", "truncation", "rules", "penalties", "bias", "logprobs", "suppression", "masking"), False)
    needs["processed_logprobs"] = False
    for row in np.flatnonzero(plan.samples):
        random = given["temperature"][row] > 0
        truncated = given["top_k"][row] > 0 or given["top_p"][row] < 1 or given["min_p"][row] > 0
        ruled = given["typical_p"][row] < 1 or given["top_n_sigma"][row] > 0
        needs["random"] |= bool(random)
        needs["truncation"] |= bool(random and truncated)
        needs["rules"] |= bool(random and ruled)
        needs["penalties"] |= bool(given["presence"][row] or given["frequency"][row] or given["repetition"][row] != 1)
        needs["bias"] |= bool(given["has_bias"][row])
        needs["suppression"] |= bool((given["suppress"][row] >= 0).any())
        needs["masking"] |= bool(given["masked"][row])
        needs["logprobs"] |= bool(given["num_logprobs"][row] >= 0)
        needs["processed_logprobs"] |= bool(given["num_processed"][row] >= 0)
    assert {need.name: bool(batch.rows.sampling.any(need)) for need in STANDARD.needs} == needs


@settings(deadline=None)
@given(plans())
def test_nothing_is_shared_with_the_plan(given_plan):
    plan, size, _ = given_plan
    batch = batch_of(plan, size)
    ours = [getattr(batch, item.name) for item in fields(batch) if item.name != "rows"]
    ours += [batch.rows.sampling.words, batch.rows.sampling.position, batch.rows.sampling.slot, *batch.rows.sampling.flags]
    ours += [batch.rows.samples, batch.rows.num_drafts]
    theirs = [plan.slots, plan.tokens, plan.query_start, plan.kv_length, plan.page_table, plan.samples, plan.sampling]
    assert not any(np.shares_memory(mine, other) for mine in ours for other in theirs)
