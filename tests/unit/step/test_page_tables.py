"""Page tables on the device, kept up to date by what plans change: against what each plan says itself."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.step.page_tables import SPARE_CHANGES, PageTables, most_changes
from tests.support.plans import make_plan

SLOTS, MAX_PAGES, SIZE = 4, 9, 4


def plan_of(rows, groups):
    """Of rows {slot: pages of all groups side by side}."""
    plan = make_plan(*(([1], max(len(pages) // groups * SIZE, 1), pages or [0] * groups) for pages in rows.values()))
    plan.slots[:] = list(rows)
    return plan


def put(device, changes):
    """As the device does, in numpy."""
    for slot, table in changes.whole:
        device[:, slot] = table
    device.reshape(-1)[changes.entries[:, 0]] = changes.entries[:, 1]


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(0, 12))
def test_the_device_knows_every_page_of_every_plan(data, groups, most):
    """Rows grow, give pages back, end, and others come into their slots."""
    tables, device = PageTables(SLOTS, groups, MAX_PAGES), np.zeros((groups, SLOTS + 1, MAX_PAGES), np.int32)
    held: dict[int, list[int]] = {slot: [] for slot in range(SLOTS)}
    for _ in range(data.draw(st.integers(1, 8))):
        for pages in held.values():
            if data.draw(st.booleans()):  # another sequence
                pages.clear()
            columns = data.draw(st.integers(0, MAX_PAGES - len(pages) // groups))
            pages += data.draw(st.lists(st.integers(1, 99), min_size=columns * groups, max_size=columns * groups))
            for place in data.draw(st.lists(st.integers(0, max(len(pages) - 1, 0)), max_size=2)) if pages else ():
                pages[place] = 0
        chosen = data.draw(st.lists(st.sampled_from(range(SLOTS)), min_size=1, unique=True))
        plan = plan_of({slot: held[slot] for slot in chosen}, groups)
        changes = tables.changes(plan, most)
        assert len(changes.entries) <= most
        put(device, changes)
        for slot in chosen:
            wanted = np.array(held[slot], np.int32).reshape(-1, groups).T
            known = device[:, slot, : wanted.shape[1]]
            assert (known[wanted != 0] == wanted[wanted != 0]).all()
        assert not device[:, SLOTS].any(), "padding has the null page"
        again = tables.changes(plan, most)
        assert (again.whole, len(again.entries)) == ((), 0)
        for one in (changes, again):
            own = [np.flatnonzero(held[slot]) for slot in chosen]
            assert one.held.tolist() == [int(each.max()) // groups + 1 if len(each) else 0 for each in own]


def test_a_step_that_goes_on_puts_no_table_whole():
    """However long its rows are: one may begin a page with every token, and chunks fill as many as they have tokens for."""
    groups, size, length = 2, 4, 400
    tables = PageTables(SLOTS, groups, length)
    rows = {slot: list(range(1, 1 + groups * 100)) for slot in range(SLOTS)}
    assert len(tables.changes(plan_of(rows, groups), 0).whole) == SLOTS
    rows = {slot: [*pages, *[7] * groups] for slot, pages in rows.items()}
    rows[0] += [9] * groups * (37 // size)
    most = most_changes(tokens=37 + SLOTS - 1, rows=SLOTS, groups=groups, page_size=size) - SPARE_CHANGES
    changes = tables.changes(plan_of(rows, groups), most)
    assert not changes.whole
    assert 0 < len(changes.entries) <= most
