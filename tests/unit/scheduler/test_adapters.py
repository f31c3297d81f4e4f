"""Adapters and their slots: whose turn it is, who is evicted, and that a row never runs with another's adapter."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.errors import CheckpointError
from jaxserve.scheduler.adapters import PATIENCE, AdapterTable
from jaxserve.step.plan import Plan
from tests.support.bench import Bench, request


def there(key: str) -> bool:
    return True


class Slots:
    """What the executor has in its slots, as plans say."""

    def __init__(self) -> None:
        self.keys: dict[int, str] = {}
        self.loads = 0

    def check(self, plan: Plan, adapters: dict[str, str]) -> None:
        for slot, key in plan.adapter_loads:
            self.keys[slot] = key
            self.loads += 1
        wanted = [adapters[name] for name in plan.ids]
        if plan.adapters is None:
            assert not any(wanted)
            return
        rows = plan.adapters.tolist()
        assert rows == sorted(rows, key=lambda slot: (slot < 0, slot)), "not sorted by slot"
        assert ["" if slot < 0 else self.keys[slot] for slot in rows] == wanted


def test_rows_of_an_adapter_are_together_and_the_others_behind() -> None:
    bench, slots = Bench(adapters=AdapterTable(2, there)), Slots()
    adapters = {"a": "x", "b": "", "c": "y", "d": "x"}
    bench.add(*(request(name, 3, adapter=key) for name, key in adapters.items()))
    plan, _ = bench.step()
    assert plan.ids == ("a", "d", "c", "b")
    slots.check(plan, adapters)
    assert slots.loads == 2


def test_a_pinned_adapter_keeps_its_slot() -> None:
    pinned = {"x"}
    table = AdapterTable(2, there, lambda: pinned)
    bench = Bench(adapters=table)

    def run(key: str) -> None:
        bench.add(request(f"{key} {table.num_loads}", 3, 2, adapter=key))
        while bench.scheduler.has_work:
            bench.step()

    for key in ("x", "y", "z", "y"):
        run(key)
        assert table.has("x")
    assert table.num_loads == 4
    pinned.add("y")  # nothing is left that may go, until one is unpinned
    bench.add(request("waits", 3, 2, adapter="z"), request("goes on", 3, 2, adapter="y"))
    assert bench.step()[0].ids == ("goes on",)
    pinned.clear()
    while bench.scheduler.has_work:
        bench.step()
    assert {"waits", "goes on"} <= set(bench.ended)
    assert not table.has("x")


def test_whoever_finds_no_slot_waits_and_those_behind_go_on() -> None:
    table = AdapterTable(1, there)
    bench = Bench(adapters=table)
    bench.add(
        request("a", 3, 6, adapter="x"), request("b", 3, 2, adapter="y"), request("c", 3, 2), request("d", 3, 2, adapter="x")
    )
    assert set(bench.step()[0].ids) == {"a", "c", "d"}
    while "a" not in bench.ended:
        bench.step()
    plan, _ = bench.step()
    assert (plan.ids, plan.adapter_loads) == (("b",), ((0, "y"),))


def test_nobody_waits_for_ever_for_a_slot_that_stays_in_use() -> None:
    bench = Bench(adapters=AdapterTable(1, there), prefix_caching=False)
    bench.add(request("x0", 3, 4, adapter="x"), request("y", 3, 2, adapter="y"))
    names = [f"x{number}" for number in range(1, 40)]
    began = None
    for number, name in enumerate(names):
        bench.add(request(name, 3, 4, adapter="x"))  # one comes before the one before it has ended
        bench.clock.advance(PATIENCE / 8)
        rows = bench.step()[0].ids
        if "y" in rows:
            began = number
            break
    assert began is not None
    assert began < 20


def test_the_least_recently_used_gives_way() -> None:
    table = AdapterTable(2, there)
    bench = Bench(adapters=table)
    for name, key in (("a", "x"), ("b", "y"), ("c", "x"), ("d", "z"), ("e", "x")):
        bench.add(request(name, 3, 1, adapter=key))
        bench.step()
    assert list(table.resident) == ["z", "x"]
    assert bench.scheduler.counts().adapter_loads == 3
    assert not any(table.resident.values()), "nothing runs"


def test_one_that_is_on_its_way_is_waited_for_and_one_that_cannot_be_had_ends_its_request() -> None:
    here: set[str] = set()

    def fetch(key: str) -> bool:
        if key == "broken":
            raise CheckpointError("adapter broken: damaged")
        return key in here

    bench = Bench(adapters=AdapterTable(2, fetch))
    bench.add(request("a", 3, 2, adapter="x"), request("b", 3, 2, adapter="broken"), request("c", 3, 2))
    assert bench.step()[0].ids == ("c",)
    assert "damaged" in str(bench.ended["b"].error)
    here.add("x")
    assert set(bench.step()[0].ids) == {"a", "c"}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_row_runs_with_its_own_adapter(data: st.DataObject) -> None:
    """Whatever comes, ends, is preempted or aborted: with few pages, so that sequences lose theirs and come back."""
    table = AdapterTable(data.draw(st.integers(1, 3)), lambda key: data.draw(st.integers(0, 3)) > 0)
    bench = Bench(num_pages=data.draw(st.integers(8, 30)), max_num_seqs=4, adapters=table, max_len=24)
    slots, adapters = Slots(), {}
    for number in range(data.draw(st.integers(1, 12))):
        name = f"r{number}"
        adapters[name] = data.draw(st.sampled_from(["", "x", "y", "z", "w"]))
        bench.add(request(name, data.draw(st.integers(1, 10)), data.draw(st.integers(1, 8)), adapter=adapters[name]))
        for _ in range(data.draw(st.integers(0, 3))):
            if (plan := bench.plan()) is not None:
                slots.check(plan, adapters)
                bench.finish(plan)
        if data.draw(st.integers(0, 5)) == 0:
            bench.scheduler.abort([data.draw(st.sampled_from(sorted(adapters)))])
    for _ in range(3000):
        if not bench.scheduler.has_work:
            break
        bench.clock.advance(1.0)
        if (plan := bench.plan()) is not None:
            slots.check(plan, adapters)
            bench.finish(plan)
    assert not bench.scheduler.has_work, "somebody waits for ever"
    assert not any(table.resident.values())
