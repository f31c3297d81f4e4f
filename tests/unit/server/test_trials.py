"""The supervisor's orders to the API servers that share an engine."""

from __future__ import annotations

import asyncio

import pytest

from jaxserve.engine.replicas.resuming import Orders
from server.processes import trials as module
from server.processes.specs import EngineFound, EngineLost, Notice, SuspectEnded, TrialPassed
from server.processes.trials import Trials

pytestmark = pytest.mark.asyncio


class Bench:
    """Trials, and the orders that were given."""

    def __init__(self) -> None:
        self.orders: list[Orders] = []
        self.trials = Trials(self._told)

    def _told(self, notice: Notice) -> None:
        assert isinstance(notice, Orders)
        self.orders.append(notice)

    @property
    def last(self) -> Orders:
        return self.orders[-1]

    def has(self, trial: list[str] | None, held: list[str]) -> bool:
        """Whether these are the latest trial and the held requests."""
        return (self.last.trial, self.last.held) == (trial, held)

    async def die(self, **in_flight: list[str]) -> bool:
        """The engine ends; half of the reports come before the supervisor knows of it."""
        processes = list(in_flight)
        for process in processes[::2]:
            self.trials.answer(process, EngineLost(in_flight[process]))
        ending = asyncio.create_task(self.trials.engine_ended())
        await asyncio.sleep(0)
        assert self.last.trial == [], "nothing runs while reports are waited for"
        for process in processes[1::2]:
            self.trials.answer(process, EngineLost(in_flight[process]))
        return await ending


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(module, "REPORT_SECONDS", 0.01)
    monkeypatch.setattr(module, "OPEN_SECONDS", 0.01)
    return Bench()


async def test_requests_of_several_servers_are_tried_together_and_the_guilty_one_is_named(bench: Bench) -> None:
    bench.trials.engine_up()
    assert bench.last.trial is None
    assert await bench.die(x=["a", "b"], y=["c", "d"], z=[])
    bench.trials.engine_up()
    assert bench.has(["a", "b"], held=["c", "d"])
    for name in "ab":
        bench.trials.answer("x", TrialPassed(name))
    assert bench.has(["c", "d"], held=[])
    assert await bench.die(x=[], y=["c", "d"])
    bench.trials.engine_up()
    assert bench.has(None, held=["c", "d"]), "others run for a while after a trial ended its engine"
    await asyncio.sleep(0.05)
    assert bench.has(["c"], held=["d"])
    assert bench.last.tokens == 2 * module.TRIAL_TOKENS
    assert await bench.die(x=[], y=["c"])
    assert bench.last.convicted == ["c"]
    bench.trials.engine_up()
    await asyncio.sleep(0.05)
    assert bench.last.trial == ["d"]
    bench.trials.answer("y", SuspectEnded("d"))
    assert bench.has(None, held=[])


async def test_a_request_that_did_not_reach_the_engine_is_not_blamed(bench: Bench) -> None:
    assert await bench.die(x=["a"])
    bench.trials.engine_up()
    assert bench.last.trial == ["a"]
    await bench.die(x=[])
    assert bench.last.convicted == []
    bench.trials.engine_up()
    await asyncio.sleep(0.05)
    assert bench.last.trial == ["a"]


async def test_engines_that_end_idle_are_no_suspicion(bench: Bench) -> None:
    assert not await bench.die(x=[], y=[])
    bench.trials.engine_up()
    assert bench.has(None, held=[])


async def test_a_report_that_comes_late_holds_its_requests(bench: Bench) -> None:
    assert not await bench.die(x=[])
    bench.trials.engine_up()
    bench.trials.answer("y", EngineLost(["late"]))
    assert bench.last.trial is None
    orders = bench.trials.answer("y", EngineFound())
    assert orders is not None
    assert orders.trial == ["late"]
    assert bench.last == orders


async def test_requests_of_a_server_that_ended_are_waited_for_no_more(bench: Bench) -> None:
    assert await bench.die(x=["a", "b"], y=["c"])
    bench.trials.engine_up()
    assert bench.last.trial == ["a", "b"]
    bench.trials.gone("x")
    assert bench.last.trial == ["c"]
    bench.trials.gone("y")
    assert bench.has(None, held=[])
