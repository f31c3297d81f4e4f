"""A fleet over scripted engines: where requests go, and how they go on."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxserve.cache.prefix_hash import page_hash
from jaxserve.engine.calls import EngineCall, FinishUpdate, Flush, PauseEngine, PutPiece, Trace, WeightSums, WorldSize
from jaxserve.engine.control import WeightInfo
from jaxserve.engine.link import HeldChange
from jaxserve.engine.replicas.carried import routing_request
from jaxserve.engine.replicas.fleet import FleetSettings
from jaxserve.engine.replicas.trials import TRIAL_TOKENS
from jaxserve.errors import ConflictError, EngineDeadError, InternalError, InvalidRequestError, JaxserveError, QueueFullError
from jaxserve.metrics.timeline import TimelineWindow
from jaxserve.metrics.turn import Turn
from jaxserve.routing.least_loaded import LeastLoaded
from jaxserve.routing.router import RoutingRequest
from jaxserve.scheduler.request import PackedLogprobs, PackedVectors, Update
from jaxserve.step.plan import LogprobRows
from tests.unit.engine.replicas.scripted import DESCRIPTION, MODEL, PAGE, PAGES, RULES, Bench, request

pytestmark = pytest.mark.asyncio
FULL = QueueFullError("it is full", retry_after=2.0)
PATIENT = FleetSettings(hang_seconds=60.0)
HASTY = FleetSettings(hang_seconds=0.3, wait_seconds=0.2, drain_seconds=0.2)


@asynccontextmanager
async def bench(*names: str, settings: FleetSettings = PATIENT, **more: Any) -> AsyncIterator[Bench]:
    made = Bench(*names, settings=settings, **more)
    try:
        yield made
    finally:
        await made.fleet.close()


class Told(LeastLoaded):
    """A router that remembers what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.chosen: list[RoutingRequest] = []
        self.log: list[str] = []

    def choose(self, request, now, excluded=()):  # type: ignore[no-untyped-def]  # as the protocol's
        self.chosen.append(request)
        return super().choose(request, now, excluded)

    def started(self, request_id: str, now: float) -> None:
        self.log.append(f"started {request_id}")

    def ended(self, request_id: str, now: float) -> None:
        self.log.append(f"ended {request_id}")
        super().ended(request_id, now)


async def test_the_router_hears_of_pages_starts_and_ends() -> None:
    router = Told()
    async with bench("a", router=router) as fleet:
        one = request("r", 9, tenant="t", deadline=5.0)
        fleet.fleet.add([one])
        first = page_hash(b"root", (1, 2, 3, 4))
        assert router.chosen[0].pages == (first, page_hash(first, (5, 6, 7, 8)))
        assert (router.chosen[0].page_size, router.chosen[0].tokens, router.chosen[0].output_tokens) == (PAGE, 9, 20)
        assert (router.chosen[0].tenant, router.chosen[0].deadline) == ("t", 5.0)
        assert fleet.links["a"].added == [[one]], "what was never moved is handed over as it is"
        fleet.links["a"].says("r", 1)
        fleet.links["a"].says("r", 2)
        assert router.log == ["started r"]
        fleet.links["a"].says("r", 3, ends=True)
        assert router.log == ["started r", "ended r"]
        assert (fleet.heard.tokens, fleet.heard.ended["r"].resumed) == ({"r": [1, 2, 3]}, 0)


async def test_a_stream_goes_on_in_another_engine_and_the_sink_hears_only_tokens() -> None:
    async with bench("a", "b") as fleet:
        one = request("r", queue_deadline=9.0, deadline=99.0)
        fleet.fleet.add([one])
        lost = fleet.place("r")
        lost.says("r", 5, 6)
        lost.dies()
        again = fleet.place("r~1")
        assert again is not lost
        assert again.added == [[replace(one, id="r~1", output=(5, 6), resumed=True, queue_deadline=math.inf)]]
        more = tuple(range(7, 7 + TRIAL_TOKENS))
        again.says("r~1", *more)
        again.dies()
        lost.finds()
        assert fleet.place("r~2").requests["r~2"].output == (5, 6, *more)
        lost.says("r~2", 8, ends=True)
        assert fleet.heard.tokens == {"r": [5, 6, *more, 8]}
        assert fleet.heard.ended["r"].resumed == 2
        assert not fleet.heard.losses[1:], "the first is of before any engine was there"


async def test_what_waited_in_the_lost_engine_keeps_its_time_to_start() -> None:
    async with bench("a", "b") as fleet:
        fleet.fleet.add([request("r", queue_deadline=9.0)])
        fleet.place("r").dies()
        (again,) = fleet.place("r~1").added[0]
        assert (again.queue_deadline, again.output, again.resumed) == (9.0, (), True)


async def test_siblings_move_together_and_each_with_its_own_tokens() -> None:
    async with bench("a", "b") as fleet:
        first = request("s0")
        fleet.fleet.add([first, replace(first, id="s1", parent="s0", seed=8), replace(first, id="s2", parent="s0", seed=9)])
        lost = fleet.place("s0")
        lost.says("s0", 1, ends=True)
        lost.says("s1", 2, 3)
        lost.dies()
        (moved,) = [link for link in fleet.links.values() if link.requests]
        wanted = [("s1~1", 8, (2, 3), None), ("s2~1", 9, (), "s1~1")]
        assert [(one.id, one.seed, one.output, one.parent) for one in moved.added[-1]] == wanted


async def test_readings_that_were_delivered_are_counted() -> None:
    async with bench("a", "b") as fleet:
        fleet.fleet.add([request("r"), request("v", parent="r")])
        rows = np.zeros(3, np.float32), np.zeros(3, np.int32), np.zeros((3, 2), np.int32), np.zeros((3, 2), np.float32)
        scores, vectors = PackedLogprobs.of(LogprobRows(*rows)), PackedVectors.of(np.zeros((2, 5), np.float32), 2)
        lost = fleet.place("r")
        lost.sink.deliver(
            [Update("r", prompt_logprobs=scores), Update("v", vectors=vectors), Update("r", prompt_logprobs=scores)]
        )
        lost.dies()
        assert [one.num_readings for one in fleet.place("r~1").added[-1]] == [6, 2]


async def test_an_engine_that_stands_still_is_left_and_its_late_words_count_no_more() -> None:
    async with bench("a", "b", settings=HASTY) as fleet:
        fleet.fleet.add([request("r")])
        hung = fleet.place("r")
        hung.says("r", 1)
        hung.stopped = time.monotonic()
        await fleet.until(lambda: any("r~1" in link.requests for link in fleet.links.values()))
        assert hung.aborted == ["r"]
        hung.says("r", 99)
        fleet.place("r~1").says("r~1", 2, ends=True)
        assert fleet.heard.tokens == {"r": [1, 2]}
        state = fleet.fleet.replicas[hung.endpoint.address]
        assert (state.ready, state.reason) == (False, "it hangs")
        hung.stopped = None
        await fleet.until(lambda: fleet.fleet.replicas[hung.endpoint.address].ready)


async def test_an_engine_that_says_nothing_is_left_too() -> None:
    async with bench("a", "b", settings=HASTY) as fleet:
        fleet.fleet.add([request("r")])
        silent = fleet.place("r")
        silent.silent = time.monotonic()
        await fleet.until(lambda: any("r~1" in link.requests for link in fleet.links.values()))
        assert silent.aborted == ["r"]


async def test_a_replica_whose_step_should_take_long_keeps_its_streams() -> None:
    async with bench("a", "b", settings=HASTY) as fleet:
        fleet.fleet.add([request("r")])
        slow = fleet.place("r")
        slow.expected, slow.stopped = 60.0, time.monotonic()
        await asyncio.sleep(3 * HASTY.hang_seconds)
        assert fleet.place("r") is slow
        slow.expected = None  # unknown: six times as long
        await fleet.until(lambda: any("r~1" in link.requests for link in fleet.links.values()))


async def test_a_refusal_by_one_is_tried_with_one_other() -> None:
    async with bench("a", "b", "c") as fleet:
        fleet.fleet.add([request("r")])
        first = fleet.place("r")
        first.refuses(FULL)
        second = fleet.place("r")
        assert second is not first
        second.refuses(FULL)
        assert fleet.heard.refused == {"r": FULL}
        fleet.fleet.add([request("taken")])
        fleet.place("taken").refuses(FULL)
        fleet.place("taken").says("taken", 1, ends=True)
        assert fleet.heard.refused.keys() == {"r"}


async def test_where_no_other_has_room_the_refusal_is_told_at_once() -> None:
    async with bench("a", "b") as fleet:
        fleet.fleet.add([request("r")])
        first = fleet.place("r")
        for link in fleet.links.values():
            link.state = replace(link.state, waiting=8)
        first.refuses(FULL)
        assert fleet.heard.refused == {"r": FULL}


async def test_what_is_wrong_with_the_request_itself_is_nobody_elses_to_try() -> None:
    async with bench("a", "b") as fleet:
        fleet.fleet.add([request("r")])
        fleet.place("r").refuses(InvalidRequestError("no such task", param="task"))
        assert isinstance(fleet.heard.refused["r"], InvalidRequestError)
        assert sum(len(link.added) for link in fleet.links.values()) == 1


async def test_a_resumed_request_tries_all_by_their_load_and_then_again() -> None:
    async with bench("a", "b", "c", "d") as fleet:
        fleet.fleet.add([request("r")])
        lost = fleet.place("r")
        lost.says("r", 1)
        others = [link for link in fleet.links.values() if link is not lost]
        for load, link in zip((5, 3, 4), others, strict=True):
            link.state = replace(link.state, running=load)
        lost.dies()
        tried = []
        for _ in others:
            tried.append(fleet.place("r~1"))
            tried[-1].refuses(FULL)
        assert len(set(map(id, tried))) == 3
        assert tried[1] is min((one for one in others if one is not tried[0]), key=lambda one: one.state.running)
        assert not fleet.heard.refused
        await fleet.until(lambda: any("r~1" in link.requests for link in others))
        fleet.place("r~1").says("r~1", 2, ends=True)
        assert fleet.heard.tokens == {"r": [1, 2]}


async def test_a_resumed_request_that_nobody_takes_ends_in_bounded_time() -> None:
    async with bench("a", "b", settings=HASTY) as fleet:
        fleet.fleet.add([request("r")])
        lost = fleet.place("r")
        lost.says("r", 1)
        lost.dies()
        other = fleet.place("r~1")
        async with asyncio.timeout(20):
            while not fleet.heard.refused:
                if "r~1" in other.requests:
                    other.refuses(FULL)
                await asyncio.sleep(0.01)
        assert fleet.heard.refused["r"].retry_after == 2.0


async def test_where_none_is_left_requests_wait_and_then_all_fail() -> None:
    async with bench("a", settings=HASTY) as fleet:
        fleet.fleet.add([request("r")])
        fleet.links["a"].dies(EngineDeadError("the device is gone"))
        fleet.fleet.add([request("new")])
        assert fleet.fleet.load().waiting == 2
        assert len(fleet.heard.losses) == 1
        await fleet.until(lambda: len(fleet.heard.losses) == 2)
        assert "the device is gone" in fleet.heard.losses[1].message
        assert fleet.heard.losses[1].retry_after is not None
        fleet.links["a"].finds()
        assert len(fleet.heard.founds) == 2
        assert not fleet.links["a"].requests, "the sink was told that they are lost"


async def test_after_the_end_nothing_runs_and_no_engine_comes_back() -> None:
    async with bench("a", "b", settings=HASTY) as fleet:
        fleet.fleet.add([request("r")])
        had = fleet.place("r")
        fleet.fleet.give_up(EngineDeadError("the fleet ends"))
        assert [one.message for one in fleet.heard.losses[1:]] == ["the fleet ends"]
        had.says("r", 1)
        had.dies()
        had.finds()
        fleet.fleet.add([request("new")])
        await fleet.until(lambda: all(one.closed for one in fleet.links.values()))
        assert (fleet.heard.tokens, len(fleet.heard.founds)) == ({}, 1)
        assert "new" not in {name for one in fleet.links.values() for name in one.requests}


async def test_an_engine_that_comes_in_time_takes_what_waits() -> None:
    async with bench("a") as fleet:
        fleet.fleet.add([request("r")])
        fleet.links["a"].says("r", 1)
        fleet.links["a"].dies()
        fleet.set("a", "b")
        fleet.links["b"].finds()
        assert fleet.links["b"].requests["r~1"].output == (1,)
        assert len(fleet.heard.losses) == 1


async def test_one_that_leaves_takes_nothing_new_ends_what_it_has_and_is_closed() -> None:
    async with bench("a", "b") as fleet:
        fleet.fleet.add([request("r")])
        leaving = fleet.place("r")
        (stays,) = [name for name, link in fleet.links.items() if link is not leaving]
        fleet.set(stays)
        fleet.fleet.add([request("new")])
        assert "new" in fleet.links[stays].requests
        leaving.says("r", 1, 2, ends=True)
        await fleet.until(lambda: leaving.closed)
        assert fleet.heard.tokens == {"r": [1, 2]}


async def test_what_one_that_leaves_does_not_end_in_time_moves() -> None:
    async with bench("a", "b", settings=HASTY) as fleet:
        fleet.fleet.add([request("r")])
        leaving = fleet.place("r")
        leaving.says("r", 1)
        (stays,) = [name for name, link in fleet.links.items() if link is not leaving]
        fleet.set(stays)
        await fleet.until(lambda: leaving.closed)
        assert fleet.links[stays].requests["r~1"].output == (1,)
        assert leaving.aborted == ["r"]


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ({"page_size": 8}, "page size is 8"),
        ({"num_pages": PAGES - 1}, "fewer than the 100"),
        ({"max_chunk": 9, "num_pages": 101}, None),
    ],
)
async def test_one_that_differs_never_joins(rules: dict[str, int], reason: str | None) -> None:
    async with bench("a") as fleet:
        fleet.set("a", "other")
        fleet.links["other"].finds(**rules)
        state = fleet.fleet.replicas["other"]
        assert state.ready == (reason is None)
        assert (reason or "") in state.reason


async def test_one_of_another_model_never_joins() -> None:
    async with bench("a") as fleet:
        fleet.set("a", "other")
        fleet.links["other"].sink.found(replace(DESCRIPTION, model=replace(MODEL, fingerprint="other", created=5)))
        assert "fingerprint is 'other', that of the fleet '5eed'" in fleet.fleet.replicas["other"].reason
        fleet.links["other"].sink.found(
            replace(DESCRIPTION, model=replace(MODEL, created=5), rules=replace(RULES, num_pages=101))
        )
        assert fleet.fleet.replicas["other"].ready


async def test_aborts_and_demotions_reach_the_engine_that_has_the_sequence_now() -> None:
    async with bench("a", "b") as fleet:
        fleet.fleet.add([request("r")])
        fleet.fleet.demote(["r", "unknown"], demoted=True)
        lost = fleet.place("r")
        assert lost.demoted == [("r", True)]
        lost.dies()
        now = fleet.place("r~1")
        assert now.demoted == [("r~1", True)]
        fleet.fleet.demote(["r"], demoted=False)
        assert now.demoted[-1] == ("r~1", False)
        fleet.fleet.abort(["r", "unknown"])
        fleet.fleet.abort(["r"])
        assert now.aborted == ["r~1"]
        now.says("r~1", 5)
        assert not fleet.heard.tokens
        now.dies()
        assert not any(link.requests for link in fleet.links.values())


async def test_calls_go_to_all_and_who_is_lost_meanwhile_is_left_out() -> None:
    async with bench("a", "b") as fleet:
        calling = asyncio.create_task(fleet.fleet.call(Flush()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        fleet.links["a"].answer.set_result(None)
        fleet.links["b"].dies()
        async with asyncio.timeout(20):
            assert await calling is None  # type: ignore[func-returns-value]  # that is what is tested


async def test_a_call_fails_as_it_does_in_an_engine_and_where_there_is_none() -> None:
    async with bench("a", "b") as fleet:
        fleet.links["a"].answer.set_result(None)
        fleet.links["b"].answer.set_exception(InternalError("no such call"))
        with pytest.raises(InternalError):
            await fleet.fleet.call(Flush())
        for link in fleet.links.values():
            link.dies()
        with pytest.raises(EngineDeadError):
            await fleet.fleet.call(Flush())


@pytest.mark.parametrize("call", [PauseEngine(), PutPiece("u", b"piece"), FinishUpdate("u", 2)])
async def test_weights_are_updated_in_all_engines_or_it_failed(call: EngineCall[WeightInfo]) -> None:
    done, old = WeightInfo(2, "5eed", True, None), WeightInfo(1, "5eed", True, None)
    async with bench("a", "b") as fleet:
        fleet.links["a"].answer.set_result(done)
        fleet.links["b"].answer.set_result(done)
        assert await fleet.fleet.call(call) == done
    async with bench("a", "b") as fleet:
        fleet.links["a"].answer.set_result(done)
        fleet.links["b"].answer.set_result(old)
        with pytest.raises(ConflictError, match="version 1, paused; version 2, paused"):
            await fleet.fleet.call(call)
    async with bench("a", "b") as fleet:
        fleet.links["a"].answer.set_result(done)
        calling = asyncio.create_task(fleet.fleet.call(call))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        fleet.links["b"].dies()
        with pytest.raises(EngineDeadError, match="ask all of them again"):
            await calling
        with pytest.raises(EngineDeadError, match="not all replicas are there: b"):
            await fleet.fleet.call(call)


async def test_what_is_told_of_each_engine() -> None:
    assert WeightSums().merged([[{"tp0:norm": "a"}], [{"tp0:norm": "b"}]]) == [{"tp0:norm": "a"}, {"tp0:norm": "b"}]
    assert WorldSize().merged([[2], [2]]) == [2, 2]
    async with bench("a", "b") as fleet:
        fleet.links["a"].answer.set_result([2])
        fleet.links["b"].answer.set_exception(EngineDeadError("it died"))
        with pytest.raises(EngineDeadError):
            await fleet.fleet.call(WorldSize())


async def test_a_trace_is_of_the_engine_that_did_most() -> None:
    few, many = (TimelineWindow(0.0, 1.0, 0.0, 5, [Turn(0.0)] * count, []) for count in (1, 3))
    assert Trace(1.0).merged([few, many]) is many


class Pages(Told):
    """A router that wants to know what replicas hold, and remembers it."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = self

    def stride(self, page_size: int) -> int:
        return 2 * page_size

    def stored(self, replica: str, pages: Iterable[bytes]) -> None:
        self.log.append(f"{replica} stored {b' '.join(pages).decode()}")

    def removed(self, replica: str, pages: Iterable[bytes]) -> None:
        self.log.append(f"{replica} removed {b' '.join(pages).decode()}")

    def cleared(self, replica: str) -> None:
        self.log.append(f"{replica} cleared")


async def test_a_router_that_wants_to_know_hears_what_every_replica_holds() -> None:
    router = Pages()
    async with bench("a", "b", router=router) as fleet:
        (of_a,), (of_b,) = fleet.links["a"].watchers, fleet.links["b"].watchers
        of_a(HeldChange(cleared=True, stored=[b"x", b"y"]))
        of_b(HeldChange(removed=[b"z"], stored=[b"y"]))
        of_b(HeldChange(removed=[b"z"]))
        assert fleet.links["a"].strides == [2 * PAGE]
        assert router.log == ["a cleared", "a stored x y", "b removed z", "b stored y", "b removed z"]


async def test_a_replica_that_comes_back_is_asked_for_everything_again() -> None:
    async with bench("a", "b", router=Pages(), settings=HASTY) as fleet:
        link = fleet.links["a"]
        link.dies()
        link.finds()
        assert len(link.watchers) == 2
        link.stopped = 0.0
        await fleet.until(lambda: not fleet.fleet.replicas["a"].ready)
        link.stopped = None
        await fleet.until(lambda: fleet.fleet.replicas["a"].ready)
        assert len(link.watchers) == 3
        assert len(fleet.links["b"].watchers) == 1


async def test_for_a_router_that_looks_at_no_prompt_nobody_is_asked() -> None:
    async with bench("a") as fleet:
        assert fleet.links["a"].watchers == []


async def test_the_load_is_the_sum() -> None:
    async with bench("a", "b") as fleet:
        fleet.links["a"].state = replace(fleet.links["a"].state, running=2, waiting=1, step_seconds=0.5)
        fleet.links["b"].state = replace(fleet.links["b"].state, running=3, step_seconds=0.1)
        load = fleet.fleet.load()
        assert (load.running, load.waiting, load.pages_total, load.step_seconds) == (5, 1, 2 * PAGES, 0.5)


async def test_the_busiest_is_measured_by_the_mean_of_those_that_take_requests() -> None:
    async with bench("a", "b", "c") as fleet:
        assert fleet.fleet.load().imbalance == 0.0
        fleet.links["a"].state = replace(fleet.links["a"].state, running=2, waiting=4)
        assert fleet.fleet.load().imbalance == 3.0
        fleet.links["b"].state = replace(fleet.links["b"].state, running=6)
        assert fleet.fleet.load().imbalance == 1.5
        fleet.links["c"].dies()
        assert fleet.fleet.load().imbalance == 1.0


async def test_one_that_is_much_slower_gets_nothing_new_for_a_while() -> None:
    settings = FleetSettings(hang_seconds=60.0, slow_factor=3.0, slow_seconds=0.05, quarantine_seconds=0.5)
    async with bench("a", "b", settings=settings) as fleet:
        fleet.fleet.add([request("before")])
        slow = fleet.place("before")
        (other,) = [link for link in fleet.links.values() if link is not slow]
        slow.state, other.state = replace(slow.state, step_seconds=0.9), replace(other.state, step_seconds=0.1)
        name = slow.endpoint.address
        await fleet.until(lambda: not fleet.fleet.replicas[name].ready)
        assert "slower" in fleet.fleet.replicas[name].reason
        for number in range(5):
            fleet.fleet.add([request(f"new{number}")])
        assert len(other.added) == 5
        slow.says("before", 1, ends=True)
        slow.state = replace(slow.state, step_seconds=0.1)
        await fleet.until(lambda: fleet.fleet.replicas[name].ready)
        other.dies()
        slow.state = replace(slow.state, step_seconds=0.9)
        assert len(slow.requests) > 2, "a slow one is better than none"


async def test_every_error_of_a_link_moves_its_streams() -> None:
    errors: list[JaxserveError] = [EngineDeadError("died"), InternalError("confused"), QueueFullError("not read")]
    for error in errors:
        async with bench("a", "b") as fleet:
            fleet.fleet.add([request("r")])
            fleet.place("r").dies(error)
            assert fleet.place("r~1")


async def test_prompts_are_routed_apart_by_adapter() -> None:
    """A replica that has the base's prefix has none of an adapter's."""

    def pages(adapter: str) -> tuple[bytes, ...]:
        return routing_request([request("a", 3 * PAGE, adapter=adapter)], PAGE, 4.0).pages

    assert len(pages("sql")) == 3
    assert not set(pages("")) & set(pages("sql"))
    assert not set(pages("legal")) & set(pages("sql"))
    assert pages("sql") == pages("sql")
    assert pages("")[0] == page_hash(b"root", range(1, PAGE + 1))
