"""Answers to lines of a batch: in whose name, at whose cost, and what is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from jaxserve.clock import VirtualClock
from jaxserve.engine.events import Started
from jaxserve.errors import (
    AuthenticationError,
    BudgetError,
    DeadlineError,
    DrainingError,
    EngineDeadError,
    JaxserveError,
    QueueFullError,
)
from jaxserve.jobs.answers import Answer, NoAnswer
from jaxserve.jobs.lines import Line
from jaxserve.types import RequestOptions
from server.batches.answers import BUDGET_SECONDS, EXPIRED, EngineAnswerer, Nobody
from server.batches.records import Batch, BatchStatus, NewBatch
from server.batches.turns import Load, Turns
from server.gateway.call import Call, JobSize
from server.gateway.gateway import Gateway
from server.gateway.keys import ANYBODY, KeyRing
from server.gateway.ledger import LedgerState, LocalUsageLedger
from server.gateway.usage import UsageEvent, UsageLog

LINE = Line(7, "r7", "/v1/completions", {"prompt": ["x", "y"], "n": 2})
GOOD = Answer(200, "cmpl-1", {})
WHOSE: dict[str, Any] = {
    "completion_id": "cmpl-1",
    "tenant": "acme",
    "key_id": "web",
    "model": "m",
    "service_class": "batch",
    "prompt": 0,
    "index": 0,
}


class Bill(UsageLog):
    """A usage log that is looked at at once."""

    def __init__(self) -> None:
        self.events: list[UsageEvent] = []

    @property
    def billed(self) -> list[str]:
        return [event.request_id for event in self.events]

    def add(self, event: UsageEvent) -> None:
        self.events.append(event)


@dataclass
class Endpoint:
    """Answers, or raises what it is to raise first; sees for whom."""

    raises: list[JaxserveError] = field(default_factory=list)
    seen: list[tuple[str, Call | None]] = field(default_factory=list)
    health: list[JaxserveError] = field(default_factory=list)

    async def ask(self, line: Line, tenant: str, call: Call) -> Answer:
        self.seen.append((tenant, call))
        assert call.log is not None
        call.log.add(UsageEvent(request_id=call.request_id, prompt_tokens=3, **WHOSE))
        if self.raises:
            raise self.raises.pop(0)
        return GOOD

    def check_health(self) -> None:
        if self.health:
            raise self.health.pop(0)


def answers_of(
    endpoint: Endpoint, keys: KeyRing | None = None, turns: Turns | None = None, bill: UsageLog | None = None
) -> EngineAnswerer:
    wanted = NewBatch(endpoint="/v1/completions", input_file_id="file-1", model="m", key_id="web")
    batch = Batch(id="batch_1", owner="acme", wanted=wanted, status=BatchStatus.IN_PROGRESS, created_at=0, expires_at=1)
    gateway = Gateway(keys, LocalUsageLedger(LedgerState(VirtualClock(), 0.0)), bill)
    return EngineAnswerer(
        batch, endpoint.ask, turns or Turns(lambda own: Load(4, 100), lambda _: 1.0), gateway, endpoint.check_health
    )


async def test_a_line_is_asked_in_its_tenants_name_as_work_in_the_background() -> None:
    endpoint = Endpoint()
    assert await answers_of(endpoint).answer(LINE) == GOOD
    ((tenant, call),) = endpoint.seen
    assert call is not None
    assert (tenant, call.request_id, call.background, call.principal) == ("acme", "batch_1-7", True, ANYBODY)


async def test_a_line_is_asked_with_the_key_that_created_the_batch(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(f'[[key]]\nsha256 = "{"0" * 64}"\ntenant = "acme"\nid = "web"\n')
    endpoint = Endpoint()
    await answers_of(endpoint, KeyRing(str(file), VirtualClock())).answer(LINE)
    ((_, call),) = endpoint.seen
    assert call is not None
    assert (call.principal.tenant, call.principal.key_id) == ("acme", "web")
    file.write_text(f'[[key]]\nsha256 = "{"0" * 64}"\ntenant = "globex"\nid = "web"\n')
    with pytest.raises(AuthenticationError):
        await answers_of(endpoint, KeyRing(str(file), VirtualClock())).answer(LINE)
    assert len(endpoint.seen) == 1


async def test_an_engine_that_is_gone_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.batches.answers.ENGINE_SECONDS", 0.001)
    gone = EngineDeadError("gone")
    endpoint = Endpoint(raises=[gone, gone], health=[gone, gone, gone])
    async with asyncio.timeout(30):
        assert await answers_of(endpoint).answer(LINE) == GOOD
    assert (len(endpoint.seen), endpoint.health) == (3, [])


async def test_a_server_that_ends_is_not_waited_for() -> None:
    for endpoint in (
        Endpoint(raises=[DrainingError("ends")]),
        Endpoint([EngineDeadError("gone")], health=[DrainingError("ends")]),
    ):
        with pytest.raises(DrainingError):
            await answers_of(endpoint).answer(LINE)


@pytest.mark.parametrize(("told", "wait"), [(3600.0, BUDGET_SECONDS), (2.5, 2.5), (None, BUDGET_SECONDS)])
async def test_a_spent_budget_is_looked_at_again_before_the_day_ends(told: float | None, wait: float) -> None:
    with pytest.raises(BudgetError, match="spent") as refused:
        await answers_of(Endpoint([BudgetError("spent", retry_after=told)])).answer(LINE)
    assert refused.value.retry_after == wait


def by_sequences() -> Turns:
    return Turns(lambda own: Load(4, 10**6), lambda _: 1.0)


def by_tokens() -> Turns:
    return Turns(lambda own: Load(10**6, 15), lambda _: 1.0)


@pytest.mark.parametrize("turns_of", [by_sequences, by_tokens])
async def test_a_line_waits_for_its_turn_and_gives_it_back(turns_of: Callable[[], Turns]) -> None:
    """Two prompts of two outputs each are four sequences; 26 bytes of JSON are about six tokens."""
    turns, endpoint = turns_of(), Endpoint([QueueFullError("full")])
    async with turns.turn("acme", "batch_2", Load(1, 10)):
        waiting = asyncio.create_task(answers_of(endpoint, turns=turns).answer(LINE))
        for _ in range(10):
            await asyncio.sleep(0)
        assert endpoint.seen == []
    async with asyncio.timeout(30):
        with pytest.raises(QueueFullError):
            await waiting
        async with turns.turn("acme", "batch_2", Load(4, 15)):
            pass


async def test_what_a_line_took_is_billed_when_its_answer_is_committed() -> None:
    bill = Bill()
    answers = answers_of(Endpoint(), bill=bill)
    await answers.answer(LINE)
    answers.committed()
    assert bill.billed == [], "it may have come while the commit was under way"
    await answers.answer(replace(LINE, number=8))
    answers.committed()
    assert bill.billed == ["batch_1-7"]
    answers.committed()
    assert bill.billed == ["batch_1-7", "batch_1-8"]
    await answers.answer(replace(LINE, number=9))
    answers.committed()
    await answers.answer(replace(LINE, number=10))
    answers.ended()
    answers.ended()
    assert bill.billed == [f"batch_1-{number}" for number in range(7, 11)]


async def test_a_line_that_broke_off_has_its_end_on_the_bill() -> None:
    bill = Bill()

    async def breaks_off(line: Line, tenant: str, call: Call) -> Answer:
        size = JobSize(prompt_tokens=1, prompts=1, sequences=1, max_tokens=1, delivers_output=True)
        work = await call.start("cmpl-1", "m", RequestOptions(), size)
        work.passed(0, Started(call.request_id, (1, 2, 3), 1, 0.0))
        call.ended(work, DeadlineError("too late"))
        return Answer(504, "", {})

    answers = replace(answers_of(Endpoint(), bill=bill), ask=breaks_off)
    assert (await answers.answer(LINE)) == Answer(504, "", {})
    answers.ended()
    told = [(one.prompt_tokens, one.final, one.reason) for one in bill.events]
    assert told == [(3, False, None), (0, True, "deadline_exceeded")]


async def test_what_has_to_be_asked_again_is_billed_once() -> None:
    bill = Bill()
    answers = answers_of(Endpoint(raises=[EngineDeadError("gone"), QueueFullError("full")]), bill=bill)
    with pytest.raises(QueueFullError):
        await answers.answer(LINE)
    await answers.answer(LINE)
    answers.ended()
    assert bill.billed == ["batch_1-7"]


async def test_nobody_answers_in_one_word() -> None:
    assert await Nobody(EXPIRED).answer(LINE) == NoAnswer("batch_expired", EXPIRED.message)
