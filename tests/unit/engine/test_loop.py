"""The engine thread: refusals, aborts, and its death, told to everyone."""

import asyncio
import logging
import queue
import threading
from concurrent.futures import Future
from typing import Any

import jax
import pytest

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.prefix_hash import CacheNamespace
from jaxserve.clock import RealClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.policies import Policies
from jaxserve.engine.apart import Apart
from jaxserve.engine.budgets import Budgets
from jaxserve.engine.build import BuiltEngine, EngineReport, MemoryLedger
from jaxserve.engine.client import ModelInfo
from jaxserve.engine.core import EngineCore
from jaxserve.engine.events import Delta, Finished, Started
from jaxserve.engine.intake import Intake, IntakeLimits
from jaxserve.engine.local import LocalEngine
from jaxserve.engine.loop import IDLE_SECONDS, MAX_PREPARING, EngineLoop, Refusal
from jaxserve.engine.phases import NO_TIMES
from jaxserve.errors import DrainingError, EngineDeadError, InternalError, InvalidRequestError, OverloadedError, QueueFullError
from jaxserve.jax_settings import engine_settings
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.load_shedding import OverloadNotice
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.types import FinishReason, RequestOptions, ServiceClass
from tests.support.broken_tokenizer import BrokenTokenizer
from tests.support.hash_executor import HashExecutor, expected
from tests.support.other_settings import process_settings
from tests.support.scripted_grammars import ScriptedConstraint, ScriptedGrammars, params_of

VOCAB, CONTEXT, PAGE, PAGES, ROWS = 260, 64, 4, 101, 4
BUDGETS = Budgets(Policies(), ServiceClass.INTERACTIVE_PAID, num_pages=PAGES - 1, page_size=PAGE)
PATIENCE = 20.0  # seconds before a test gives up


class FragileExecutor(HashExecutor):
    """Fails at one step; starts none while its gate is closed."""

    def __init__(self, fails_at=None):
        super().__init__(PAGES, PAGE, ROWS, CONTEXT, VOCAB)
        self.fails_at = fails_at
        self.gate = threading.Event()
        self.gate.set()

    def submit(self, plan):
        assert self.gate.wait(PATIENCE)
        if plan.step == self.fails_at:
            raise RuntimeError("the device is gone")
        return super().submit(plan)


class SlowGrammars(ScriptedGrammars):
    """Grammars are there when the test says so."""

    def __init__(self):
        self.ready: Future[Any] = Future()
        self.released: list[str] = []

    def compile(self, params, tenant=""):
        return self.ready

    def release(self, params, tenant=""):
        self.released.append(tenant)

    def constraints(self, params):
        self.ready.result()
        return super().constraints(params)

    @property
    def masker(self):
        return self


def build(tokenizer, *, fails_at=None, max_waiting=8, grammars=None):
    config = SchedulerConfig(max_num_seqs=ROWS, max_num_batched_tokens=16, max_waiting=max_waiting)
    clock = RealClock()
    core = EngineCore(
        Scheduler(config, KVCache(PAGES, PAGE, prefix_caching=True), CONTEXT, clock, masker=grammars),
        FragileExecutor(fails_at),
        overlap=True,
        grammars=grammars,
    )
    limits = IntakeLimits(
        max_model_len=CONTEXT, vocab_size=VOCAB, eos_token_ids=frozenset(), max_sequences=128, seed=0, strict=True
    )
    intake = Intake(tokenizer, limits, CacheNamespace("m", "float32", "r"), BUDGETS)
    model = ModelInfo("hash", "HashForCausalLM", CONTEXT, VOCAB, "float32", 0, 0)
    report = EngineReport(model, "int32", "none", PAGE, MemoryLedger(0, 0, 0, 0), config, (), NO_TIMES)
    return BuiltEngine(core, intake, tokenizer, None, report, clock)


class Watched:
    """An engine loop, what it said, and whether it died."""

    def __init__(self, built):
        self.said: queue.Queue[Any] = queue.Queue()
        self.deaths: queue.Queue[Any] = queue.Queue()
        self.loop = EngineLoop(built.core, self.said.put, self.deaths.put)
        self.intake = built.intake

    def requests(self, prompt=(5, 6, 7), tenant="", **params):
        now, options = RealClock().now(), RequestOptions(tenant=tenant)
        return self.intake.prepare({"prompt_token_ids": list(prompt)}, SamplingParams(**params), "name", now, options)

    def until(self, wanted):
        """Outcomes up to the first that fits."""
        seen: list[Any] = []
        while not any(map(wanted, seen)):
            seen += self.said.get(timeout=PATIENCE)
        return seen


@pytest.fixture
def watched(tokenizer):
    watched = Watched(build(tokenizer, max_waiting=4))
    yield watched
    watched.loop.stop()


def test_a_request_runs(watched):
    watched.loop.start()
    (request,) = watched.requests(max_tokens=6)
    watched.loop.add([request])
    updates = watched.until(lambda update: update.finish_reason)
    assert [update.token for update in updates] == expected([5, 6, 7], 6, vocab=VOCAB)


def test_a_refusal_is_told_and_the_others_go_on(watched):
    big, small = watched.requests(n=5, max_tokens=4), watched.requests(max_tokens=4)
    watched.loop.add(big)  # the inbox is read when the thread starts
    watched.loop.add(small)
    watched.loop.start()
    outcomes = watched.until(lambda outcome: not isinstance(outcome, Refusal) and outcome.finish_reason)
    (refusal,) = [outcome for outcome in outcomes if isinstance(outcome, Refusal)]
    assert refusal.ids == tuple(request.id for request in big)
    assert isinstance(refusal.error, QueueFullError)
    assert {outcome.id for outcome in outcomes if outcome is not refusal} == {small[0].id}


def test_a_refusal_is_told_at_once_by_an_idle_engine(watched):
    watched.loop.start()
    watched.loop.add(watched.requests(n=5))
    (refusal,) = watched.said.get(timeout=PATIENCE)
    assert isinstance(refusal, Refusal)


def test_an_abort_in_the_same_turn(watched):
    gone, stays = watched.requests(max_tokens=4), watched.requests(max_tokens=4)
    watched.loop.add(gone)
    watched.loop.abort([gone[0].id, "unknown"])
    watched.loop.add(stays)
    watched.loop.start()
    updates = watched.until(lambda update: update.finish_reason)
    assert {update.id for update in updates} == {stays[0].id}


def test_stop_ends_the_thread_and_may_be_called_again(watched):
    others = set(threading.enumerate())
    watched.loop.start()
    watched.loop.add(watched.requests(max_tokens=60))
    assert [thread.name for thread in set(threading.enumerate()) - others] == ["jaxserve-engine"]
    watched.loop.stop()
    assert set(threading.enumerate()) <= others
    watched.loop.stop()
    assert watched.deaths.empty()


def test_a_failing_step_ends_the_loop(tokenizer, caplog):
    watched = Watched(build(tokenizer, fails_at=2))
    watched.loop.start()
    watched.loop.add(watched.requests(max_tokens=20))
    error = watched.deaths.get(timeout=PATIENCE)
    assert str(error) == "the device is gone"
    watched.loop.stop()
    assert "the engine loop died" in caplog.text
    assert caplog.records[0].levelno == logging.ERROR
    watched.loop.add(watched.requests())  # nobody reads it, nobody waits for it
    watched.loop.abort(["x"])
    watched.loop.stop()


def test_an_idle_engine_ends_when_it_is_not_intact_any_more(tokenizer):
    built = build(tokenizer)
    died: queue.SimpleQueue[Any] = queue.SimpleQueue()
    error = EngineDeadError("a bit is lost")
    lost = threading.Event()

    def intact():
        if lost.is_set():
            raise error

    built.core.intact = intact
    loop = EngineLoop(built.core, lambda outcomes: None, died.put)
    loop.start()
    with pytest.raises(queue.Empty):
        died.get(timeout=2 * IDLE_SECONDS)
    lost.set()
    assert died.get(timeout=PATIENCE) is error
    loop.stop()


def test_a_call_runs_between_turns_in_the_thread_of_the_loop(watched):
    watched.loop.start()
    watched.loop.add(watched.requests(max_tokens=40))
    seen = []
    called = watched.loop.call(lambda core: seen.append((threading.current_thread().name, core.scheduler.num_running)))
    assert called.result(PATIENCE) is None
    assert [name for name, _ in seen] == ["jaxserve-engine"]


def test_a_call_that_fails_ends_nothing_else(watched):
    watched.loop.start()
    failed = watched.loop.call(lambda core: core.no_such_thing)
    with pytest.raises(AttributeError, match="no_such_thing"):
        failed.result(PATIENCE)
    watched.loop.add(watched.requests(max_tokens=3))
    assert watched.until(lambda update: update.finish_reason)


def test_a_call_that_nobody_waits_for_is_not_made(watched):
    calls: list[Any] = []
    first = watched.loop.call(calls.append)
    assert first.cancel()
    watched.loop.start()
    watched.loop.call(lambda core: None).result(PATIENCE)
    assert calls == []


def test_calls_to_a_loop_that_ended_are_refused(watched):
    watched.loop.start()
    watched.loop.stop()
    with pytest.raises(EngineDeadError, match="the engine has ended"):
        watched.loop.call(lambda core: None).result(PATIENCE)


def test_calls_behind_the_end_are_refused(watched):
    watched.loop._inbox.put(None)
    waiting = watched.loop.call(lambda core: None)
    watched.loop.start()
    with pytest.raises(EngineDeadError, match="the engine has ended"):
        waiting.result(PATIENCE)


@pytest.fixture
def watched_slow(tokenizer):
    grammars = SlowGrammars()
    watched = Watched(build(tokenizer, max_waiting=4, grammars=grammars))
    watched.loop.start()
    yield watched, grammars
    watched.loop.stop()


@pytest.fixture
def slow(watched_slow):
    watched, grammars = watched_slow
    return watched, grammars.ready


CONSTRAINED: dict[str, Any] = {"max_tokens": 30, "structured_outputs": params_of(5)}


def test_a_request_waits_for_its_grammar_outside_of_the_queue(slow):
    watched, ready = slow
    (waits,), (runs,) = watched.requests(**CONSTRAINED), watched.requests(max_tokens=6)
    watched.loop.add([waits])
    watched.loop.add([runs])
    updates = watched.until(lambda update: update.finish_reason)
    assert {update.id for update in updates} == {runs.id}
    assert watched.loop.call(lambda core: (core.scheduler.num_waiting, core.has_work)).result(PATIENCE) == (0, False)
    ready.set_result(None)
    updates = watched.until(lambda update: update.finish_reason)
    assert {update.id for update in updates} == {waits.id}
    constraint = ScriptedConstraint(5)
    assert all([constraint.accept(update.token) for update in updates if update.token is not None][:-1])


def test_one_that_is_aborted_while_it_waits_for_its_grammar_says_nothing(slow):
    watched, ready = slow
    gone, stays = watched.requests(n=2, **CONSTRAINED), watched.requests(max_tokens=6)
    watched.loop.add(gone)
    watched.loop.abort([gone[1].id])
    watched.loop.call(lambda core: None).result(PATIENCE)
    ready.set_result(None)
    updates = watched.until(lambda update: update.finish_reason)
    assert {update.id for update in updates} == {gone[0].id}
    watched.loop.add(stays)
    assert {update.id for update in watched.until(lambda update: update.finish_reason)} == {stays[0].id}


def test_a_grammar_that_cannot_be_compiled_is_a_refusal(slow):
    watched, ready = slow
    waits = watched.requests(n=2, **CONSTRAINED)
    watched.loop.add(waits)
    ready.set_exception(InvalidRequestError("no such keyword", param="structured_outputs.json"))
    (refusal,) = watched.said.get(timeout=PATIENCE)
    assert refusal.ids == tuple(request.id for request in waits)
    assert (refusal.error.message, refusal.error.param) == ("no such keyword", "structured_outputs.json")


def test_a_tenant_takes_at_most_half_of_the_free_places_for_grammars(slow):
    watched, ready = slow
    for _ in range(MAX_PREPARING):
        watched.loop.add(watched.requests(tenant="greedy", **CONSTRAINED))
    assert watched.loop.call(lambda core: len(watched.loop._preparing)).result(PATIENCE) == MAX_PREPARING // 2
    refusals = watched.until(lambda refusal: True)
    assert all(isinstance(one.error, QueueFullError) and one.error.retry_after for one in refusals)
    watched.loop.add(watched.requests(tenant="modest", **CONSTRAINED))
    assert watched.loop.call(lambda core: len(watched.loop._preparing)).result(PATIENCE) == MAX_PREPARING // 2 + 1
    ready.set_exception(InvalidRequestError("no such keyword"))


def test_an_abort_gives_up_the_grammar_and_its_place(watched_slow):
    watched, grammars = watched_slow
    gone = watched.requests(n=2, tenant="t", **CONSTRAINED)
    watched.loop.add(gone)
    watched.loop.abort([gone[0].id])
    assert watched.loop.call(lambda core: list(grammars.released)).result(PATIENCE) == []
    watched.loop.abort([gone[1].id])
    assert watched.loop.call(lambda core: list(grammars.released)).result(PATIENCE) == ["t"]
    grammars.ready.set_result(None)
    assert watched.loop.call(lambda core: core.has_work).result(PATIENCE) is False


def test_an_engine_without_grammars_refuses_them(watched):
    watched.loop.start()
    watched.loop.add(watched.requests(**CONSTRAINED))
    (refusal,) = watched.said.get(timeout=PATIENCE)
    assert refusal.error.param == "structured_outputs"


async def start(built):
    engine = LocalEngine(built, built.tokenizer, asyncio.get_running_loop())
    engine.run()
    return engine


async def ask(engine, prompt="hello", **params):
    return [event async for event in engine.generate(prompt, SamplingParams(**params))]


async def test_events_of_a_stream(tokenizer):
    engine = await start(build(tokenizer))
    events = await ask(engine, max_tokens=5, n=2)
    assert isinstance(events[0], Started)
    assert [event.index for event in events if isinstance(event, Finished)] == [0, 1]
    tokens = [token for event in events if isinstance(event, Delta) and event.index == 0 for token in event.token_ids]
    assert tokens == expected(tokenizer.encode("hello"), 5, vocab=VOCAB)
    await engine.drain(0.0)


def aborts(engine):
    """What the engine is told to end from now on."""
    told, abort = [], engine._link.abort

    def noted(ids):
        told.extend(ids)
        return abort(ids)

    engine._link.abort = noted
    return told


async def test_a_stop_string_frees_the_sequence(tokenizer):
    engine = await start(build(tokenizer))
    told = aborts(engine)
    wanted = tokenizer.decode(expected(tokenizer.encode("hello"), 40, vocab=VOCAB), skip_special_tokens=True)
    stop = next(wanted[place] for place in range(3, len(wanted)) if wanted[place].isascii())
    events = await ask(engine, max_tokens=40, stop=stop)
    assert events[-1].finish_reason is FinishReason.STOP
    assert "".join(event.text for event in events if isinstance(event, Delta)) == wanted[: wanted.index(stop)]
    async with asyncio.timeout(PATIENCE):
        while engine.stats().running:
            await asyncio.sleep(0.001)
    stats = engine.stats()
    assert stats.pages_free == stats.pages_total
    assert (stats.finished, stats.aborted, len(told)) == (1, 0, 1)
    await engine.drain(0.0)


async def test_a_refused_request_raises_and_counts(tokenizer):
    engine = await start(build(tokenizer, max_waiting=4))
    with pytest.raises(QueueFullError, match="max_waiting is 4"):
        await ask(engine, n=5)
    assert isinstance((await ask(engine, max_tokens=3))[-1], Finished)
    stats = engine.stats()
    assert (stats.received, stats.rejected, stats.finished, stats.aborted) == (2, 1, 1, 0)
    await engine.drain(0.0)


async def test_bad_input_raises_before_the_engine_hears_of_it(tokenizer):
    engine = await start(build(tokenizer, fails_at=0))
    with pytest.raises(InvalidRequestError, match="prompt must not be empty"):
        await ask(engine, "")
    with pytest.raises(InvalidRequestError, match="max_tokens is 1000"):
        await ask(engine, max_tokens=1000)
    engine.check_health()
    stats = engine.stats()
    assert (stats.received, stats.rejected) == (2, 2)
    await engine.drain(0.0)


async def test_a_name_may_not_be_used_twice_at_once(tokenizer):
    engine = await start(build(tokenizer))
    stream = engine.generate("hello", SamplingParams(max_tokens=50), request_id="mine")
    await anext(stream)
    with pytest.raises(InvalidRequestError, match="request_id 'mine' is active already") as refused:
        await anext(engine.generate("hello", SamplingParams(), request_id="mine"))
    assert refused.value.param == "request_id"
    await stream.aclose()
    assert [event async for event in engine.generate("hello", SamplingParams(max_tokens=2), request_id="mine")]
    await engine.drain(0.0)


async def test_when_the_engine_dies_every_stream_ends(tokenizer, caplog):
    engine = await start(build(tokenizer, fails_at=12))
    async with asyncio.timeout(PATIENCE):
        endings = await asyncio.gather(*(ask(engine, max_tokens=50) for _ in range(7)), return_exceptions=True)
    assert all(isinstance(ending, EngineDeadError) for ending in endings), endings
    assert isinstance(endings[0], EngineDeadError)
    assert "the device is gone" in endings[0].message
    with pytest.raises(EngineDeadError, match="the device is gone"):
        engine.check_health()
    with pytest.raises(EngineDeadError):
        await ask(engine)
    assert not await engine.abort("unknown")
    stats = engine.stats()
    assert stats.received == stats.finished + stats.aborted + stats.rejected == 8
    async with asyncio.timeout(PATIENCE):
        await engine.drain(PATIENCE)
    with pytest.raises(EngineDeadError):
        engine.check_health()


async def test_a_drained_engine_cuts_off_what_takes_too_long(tokenizer):
    built = build(tokenizer)
    gate = built.core.executor.gate
    gate.clear()
    engine = await start(built)
    stream = engine.generate("hello", SamplingParams(max_tokens=50))
    waiting = asyncio.create_task(anext(stream))
    while engine.stats().running == 0:
        await asyncio.sleep(0.001)
    drained = asyncio.create_task(engine.drain(0.05))
    with pytest.raises(DrainingError, match="before the request was done"):
        await waiting
    gate.set()
    await drained
    assert engine.stats().aborted + engine.stats().rejected == 1


async def test_a_request_whose_text_cannot_be_made_fails_alone(tokenizer, caplog):
    fine = expected(tokenizer.encode("others"), 20, vocab=VOCAB)
    bad = next(token for token in expected(tokenizer.encode("hello"), 20, vocab=VOCAB)[3:] if token not in fine)
    engine = await start(build(BrokenTokenizer(tokenizer, bad)))
    seen, told = [], aborts(engine)

    async def ask_badly():
        async for event in engine.generate("hello", SamplingParams(max_tokens=20, n=2, skip_special_tokens=False)):
            seen.append(event)

    other = asyncio.create_task(ask(engine, "others", max_tokens=20))
    with pytest.raises(InternalError, match="no such word"):
        await ask_badly()
    assert isinstance(seen[0], Started)
    tokens = [token for event in await other if isinstance(event, Delta) for token in event.token_ids]
    assert tokens == fine
    assert len(told) == 2, "both of its sequences are ended"
    async with asyncio.timeout(PATIENCE):
        while engine.stats().running:
            await asyncio.sleep(0.001)
    stats = engine.stats()
    assert stats.pages_free == stats.pages_total
    assert (stats.received, stats.finished, stats.aborted, stats.rejected, stats.active) == (2, 1, 1, 0, 0)
    engine.check_health()
    await engine.drain(0.0)


async def test_a_prompt_whose_text_cannot_be_read_is_refused_alone(tokenizer, caplog):
    engine = await start(build(BrokenTokenizer(tokenizer, 77)))
    with pytest.raises(InternalError, match=r"failed in its preparation.*no such word"):
        await ask(engine, {"prompt_token_ids": [77, 5]}, max_tokens=2)
    assert await ask(engine, {"prompt_token_ids": [5, 6]}, max_tokens=2)
    stats = engine.stats()
    assert (stats.received, stats.finished, stats.rejected, stats.active) == (2, 1, 1, 0)
    await engine.drain(0.0)


async def cached(engine, **options):
    """Prompt tokens found in the cache."""
    prompt = {"prompt_token_ids": list(range(5, 25))}
    stream = engine.generate(prompt, SamplingParams(max_tokens=1), options=RequestOptions(**options))
    return next(event.cached_tokens for event in [event async for event in stream] if isinstance(event, Started))


async def test_tenants_and_salts_share_no_prefix(tokenizer):
    engine = await start(build(tokenizer))
    for options in ({}, {"tenant": "a"}, {"tenant": "b"}, {"tenant": "b", "cache_salt": "x"}):
        assert await cached(engine, **options) == 0
        assert await cached(engine, **options) == 16
    await engine.drain(0.0)


async def test_the_prefix_cache_can_be_reset(tokenizer):
    engine = await start(build(tokenizer))
    assert [await cached(engine), await cached(engine)] == [0, 16]
    assert (engine.stats().prefix_queried_tokens, engine.stats().prefix_hit_tokens) == (40, 16)
    await engine.reset_prefix_cache()
    assert [await cached(engine), await cached(engine)] == [0, 16]
    await engine.drain(0.0)
    with pytest.raises(EngineDeadError):
        await engine.reset_prefix_cache()


def test_steps_and_calls_run_with_the_engines_settings_of_jax():
    def x64():
        return jax.config.values["jax_enable_x64"]

    seen, built = [], build(None)
    built.core.settings = engine_settings
    submit = built.core.executor.submit

    def recorded(plan):
        seen.append(x64())
        return submit(plan)

    built.core.executor.submit = recorded
    watched = Watched(built)
    with process_settings({"jax_enable_x64": True}):
        watched.loop.start()
        watched.loop.add(watched.requests(max_tokens=2))
        watched.until(lambda outcome: outcome.finish_reason is not None)
        calls = [watched.loop.call(lambda core: x64()), watched.loop.call(lambda core: Apart(x64, None))]
        assert [call.result(PATIENCE) for call in calls] == [False, False]
        watched.loop.stop()
        assert x64()
    assert seen
    assert not any(seen)


def test_in_an_overload_requests_are_refused_while_a_step_is_computed():
    """The loop's thread is in a step that does not end, and the refusal is there all the same."""
    built = build(None)
    told: list[Any] = []
    loop = EngineLoop(built.core, told.extend, lambda error: None)
    waits = dict.fromkeys((ServiceClass.INTERACTIVE_PAID, ServiceClass.INTERACTIVE_FREE), 9.0)
    built.core.scheduler.gate.notice = OverloadNotice(0.5, {}, waits, 0.001, waits)
    requests = built.intake.prepare({"prompt_token_ids": [1, 2]}, SamplingParams(n=2), "r", 0.0)
    loop.add(requests)
    [refusal] = told
    assert refusal.ids == tuple(request.id for request in requests)
    assert isinstance(refusal.error, OverloadedError)
    assert refusal.error.retry_after == 9.0
    built.core.scheduler.gate.notice = None
    loop.add(requests)
    assert len(told) == 1
    loop.start()
    loop.stop()
    assert {update.id for update in told[1:]} <= set(refusal.ids)
