"""What every EngineClient does, wherever its engine runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, cast

import pytest

from jaxserve.engine.calls import AskDemand, EngineCall, Flush
from jaxserve.engine.client import EngineClient, EngineStats
from jaxserve.engine.events import Delta, Event, Finished, Started
from jaxserve.engine.local import LocalEngine
from jaxserve.errors import (
    ContextLengthError,
    DeadlineError,
    DrainingError,
    EngineDeadError,
    InternalError,
    InvalidRequestError,
    JaxserveError,
    QueueFullError,
)
from jaxserve.sampling.params import SamplingParams
from jaxserve.types import FinishReason, Prompt, RequestOptions
from tests.support.hash_engine import CONTEXT, PAGES, VOCAB
from tests.support.hash_executor import expected

PATIENCE = 30.0
PROMPT = [72, 101, 108, 108, 111]


def stream(client: EngineClient, prompt: Prompt | None = None, **given: Any) -> AsyncGenerator[Event, None]:
    """The events of a request; `request_id` and `options` go where they belong."""
    others = {name: given.pop(name) for name in ("request_id", "options") if name in given}
    events = client.generate(prompt or {"prompt_token_ids": PROMPT}, SamplingParams(**given), **others)
    return cast(AsyncGenerator[Event, None], events)


async def ask(client: EngineClient, prompt: Prompt | None = None, **given: Any) -> list[Event]:
    async with asyncio.timeout(PATIENCE):
        return [event async for event in stream(client, prompt, **given)]


def tokens_of(events: list[Event], index: int = 0) -> list[int]:
    return [token for event in events if isinstance(event, Delta) and event.index == index for token in event.token_ids]


async def _rest(events: AsyncGenerator[Event, None]) -> list[Event]:
    return [event async for event in events]


async def until(client: EngineClient, condition: Callable[[EngineStats], bool]) -> EngineStats:
    async with asyncio.timeout(PATIENCE):
        while not condition(client.stats()):
            await asyncio.sleep(0.01)
    return client.stats()


async def until_idle(client: EngineClient) -> EngineStats:
    """All pages free, and every request counted once."""
    stats = await until(client, lambda stats: stats.active == stats.running == stats.waiting == 0 and free(stats))
    assert stats.received == stats.finished + stats.aborted + stats.rejected
    return stats


def free(stats: EngineStats) -> bool:
    return stats.pages_free == stats.pages_total > 0 == stats.pages_total % (PAGES - 1)  # of one engine, or of several


async def test_events_of_a_request(client: EngineClient) -> None:
    before = client.stats()
    events = await ask(client, max_tokens=6, n=2, request_id="mine")
    assert isinstance(events[0], Started)
    assert events[0].prompt_token_ids == tuple(PROMPT)
    assert {event.request_id for event in events} == {"mine"}
    for index in (0, 1):
        assert tokens_of(events, index) == expected(PROMPT, 6, vocab=VOCAB)
        (end,) = [event for event in events if isinstance(event, Finished) and event.index == index]
        assert (end.finish_reason, end.usage.prompt_tokens, end.usage.completion_tokens) == (FinishReason.LENGTH, 5, 6)
        assert 0.0 <= end.timing.queue <= end.timing.first_token <= end.timing.total
        deltas = [event for event in events if isinstance(event, Delta) and event.index == index]
        places = [delta.first_token_index + place for delta in deltas for place in range(len(delta.token_ids))]
        assert places == list(range(6))
    stats = await until_idle(client)
    assert (stats.finished, stats.received) == (before.finished + 1, before.received + 1)


async def test_a_text_prompt_is_tokenized(client: EngineClient) -> None:
    events = await ask(client, "hello", max_tokens=3)
    assert isinstance(events[0], Started)
    assert list(events[0].prompt_token_ids) == client.tokenizer.encode("hello")
    assert tokens_of(events) == expected(client.tokenizer.encode("hello"), 3, vocab=VOCAB)


async def test_model_and_tokenizer(client: EngineClient) -> None:
    assert (client.model.name, client.model.max_model_len) == ("hash", CONTEXT)
    assert client.tokenizer.decode(client.tokenizer.encode("abc")) == "abc"


async def test_logprobs_are_of_their_own_tokens(client: EngineClient) -> None:
    """Of several requests in the same steps: each gets its own rows."""
    prompts = [[number + 5, number + 6] for number in range(8)]
    wanted = [3 if number % 2 else None for number in range(8)]
    replies = await asyncio.gather(
        *(
            ask(client, {"prompt_token_ids": prompt}, max_tokens=5, logprobs=count)
            for prompt, count in zip(prompts, wanted, strict=True)
        )
    )
    for prompt, count, events in zip(prompts, wanted, replies, strict=True):
        assert tokens_of(events) == expected(prompt, 5, vocab=VOCAB)
        for event in events:
            if not isinstance(event, Delta):
                continue
            if count is None:
                assert event.logprobs is None
                continue
            assert event.logprobs is not None
            for position, token in zip(event.logprobs, event.token_ids, strict=True):
                chosen = position.chosen
                assert (chosen.token_id, chosen.logprob, chosen.rank) == (token, -token / 8, token + 1)
                assert [top.token_id for top in position.top] == [(token + place) % VOCAB for place in range(3)]
            assert [top.logprob for top in position.top] == [-((token + place) % VOCAB) / 16 for place in range(3)]


async def test_prompt_logprobs(client: EngineClient) -> None:
    prompt = list(range(5, 105))  # several chunks
    events = await ask(client, {"prompt_token_ids": prompt}, max_tokens=2, prompt_logprobs=1, n=2)
    assert isinstance(events[0], Started)
    scores = events[0].prompt_logprobs
    assert scores is not None
    assert scores[0] is None
    assert [score.chosen.token_id for score in scores[1:] if score is not None] == prompt[1:]
    assert [score.chosen.logprob for score in scores[1:] if score is not None] == [-token / 8 for token in prompt[1:]]


async def test_a_prompt_that_is_only_scored(client: EngineClient) -> None:
    prompt = list(range(3, 103))
    scoring = {"max_tokens": 0, "prompt_logprobs": 0, "prompt_logprobs_start": 98}
    for cached in (0, 96):
        events = await ask(client, {"prompt_token_ids": prompt}, **scoring)
        started, finished = events
        assert isinstance(started, Started)
        assert isinstance(finished, Finished)
        assert started.prompt_token_ids == tuple(prompt)
        assert started.prompt_logprobs is not None
        assert [score and score.chosen.token_id for score in started.prompt_logprobs] == [*[None] * 98, 101, 102]
        assert (finished.finish_reason, finished.usage.completion_tokens) == (FinishReason.LENGTH, 0)
        assert finished.usage.cached_tokens == cached
    await until_idle(client)


async def test_a_stop_string(client: EngineClient) -> None:
    whole = client.tokenizer.decode(expected(PROMPT, 60, vocab=VOCAB))
    stop = next(whole[place] for place in range(3, len(whole)) if whole[place].isascii())
    events = await ask(client, max_tokens=60, stop=stop)
    assert isinstance(events[-1], Finished)
    assert (events[-1].finish_reason, events[-1].matched) == (FinishReason.STOP, stop)
    assert "".join(event.text for event in events if isinstance(event, Delta)) == whole[: whole.index(stop)]
    await until_idle(client)


async def test_a_stop_string_that_is_no_unicode(client: EngineClient) -> None:
    assert tokens_of(await ask(client, max_tokens=4, stop="\ud800")) == expected(PROMPT, 4, vocab=VOCAB)


async def test_a_stop_token(client: EngineClient) -> None:
    tokens = expected(PROMPT, 20, vocab=VOCAB)
    events = await ask(client, max_tokens=20, stop_token_ids=(tokens[4],))
    assert isinstance(events[-1], Finished)
    assert events[-1].matched == tokens[4]
    assert tokens_of(events) == tokens[: tokens.index(tokens[4]) + 1]


@pytest.mark.parametrize(
    ("given", "kind", "param"),
    [
        ({"prompt": {"prompt_token_ids": [VOCAB]}}, InvalidRequestError, "prompt"),
        ({"prompt": {"prompt_token_ids": []}}, InvalidRequestError, "prompt"),
        ({"prompt": {"prompt": ""}}, InvalidRequestError, "prompt"),
        ({"prompt": {"prompt_token_ids": [5] * CONTEXT}}, ContextLengthError, "prompt"),
        ({"max_tokens": CONTEXT}, ContextLengthError, "max_tokens"),
        ({"logit_bias": {VOCAB: 1.0}}, InvalidRequestError, "logit_bias"),
        ({"n": 101}, InvalidRequestError, "n"),
        ({"options": RequestOptions(timeout=-1.0)}, InvalidRequestError, "timeout"),
        ({"options": RequestOptions(tenant="x" * 1000)}, InvalidRequestError, "tenant"),
        ({"request_id": "\ud800"}, InvalidRequestError, "request_id"),
    ],
)
async def test_bad_input_names_the_field(
    client: EngineClient, given: dict[str, Any], kind: type[JaxserveError], param: str
) -> None:
    with pytest.raises(kind) as refused:
        await ask(client, **given)
    assert refused.value.param == param
    client.check_health()
    await until_idle(client)


async def test_a_refusal_of_the_scheduler_keeps_its_class_and_its_hint(start: Any) -> None:
    async with start(max_waiting=4, step_seconds=0.02) as client:
        await ask(client, max_tokens=2)
        many = [asyncio.create_task(ask(client, max_tokens=40, n=4)) for _ in range(8)]
        endings = await asyncio.gather(*many, return_exceptions=True)
        refused = [ending for ending in endings if isinstance(ending, BaseException)]
        assert 0 < len(refused) < 8
        assert all(isinstance(error, QueueFullError) and (error.retry_after or 0) > 0 for error in refused), refused
        stats = await until_idle(client)
        assert (stats.rejected, stats.finished) == (len(refused), 9 - len(refused))


async def test_a_timeout_in_mid_stream(start: Any) -> None:
    async with start(step_seconds=0.02) as client:
        await ask(client, max_tokens=1)
        events = stream(client, max_tokens=200, options=RequestOptions(timeout=1.5))
        assert isinstance(await anext(events), Started)
        with pytest.raises(DeadlineError):
            await asyncio.wait_for(_rest(events), PATIENCE)
        assert (await until_idle(client)).aborted == 1


async def test_64_at_once_are_as_each_alone(client: EngineClient) -> None:
    prompts = [[number % VOCAB, 7, number % 3] for number in range(64)]
    replies = await asyncio.gather(*(ask(client, {"prompt_token_ids": prompt}, max_tokens=20) for prompt in prompts))
    for prompt, events in zip(prompts, replies, strict=True):
        assert tokens_of(events) == expected(prompt, 20, vocab=VOCAB)
    await until_idle(client)


async def test_closing_the_stream_frees_its_pages(start: Any) -> None:
    """Long before the sequences would have come to their end."""
    async with start(step_seconds=0.1) as client:
        async with aclosing(stream(client, max_tokens=200, n=3)) as events:
            assert isinstance(await anext(events), Started)
        async with asyncio.timeout(10.0):
            assert (await until_idle(client)).aborted == 1


async def test_cancelling_the_reader_frees_its_pages(client: EngineClient) -> None:
    before = client.stats().aborted
    tasks = [asyncio.create_task(ask(client, max_tokens=240)) for _ in range(20)]
    await until(client, lambda stats: stats.running > 0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    stats = await until_idle(client)
    assert stats.aborted + stats.finished >= before + 20


async def test_abort_by_name(client: EngineClient) -> None:
    assert not await client.abort("unknown")
    async with asyncio.timeout(PATIENCE):
        events = []
        async for event in stream(client, max_tokens=240, n=2, request_id="long"):
            if isinstance(event, Started):
                assert await client.abort("long")
                assert not await client.abort("long")
            events.append(event)
    ends = [event for event in events if isinstance(event, Finished)]
    assert [(end.index, end.finish_reason) for end in ends] == [(0, FinishReason.ABORT), (1, FinishReason.ABORT)]
    await until_idle(client)


async def test_a_name_may_not_be_used_twice_at_once(client: EngineClient) -> None:
    async with aclosing(stream(client, max_tokens=200, request_id="same")) as events:
        await anext(events)
        with pytest.raises(InvalidRequestError, match="active already"):
            await ask(client, request_id="same")
    assert await ask(client, max_tokens=2, request_id="same")


async def test_the_prefix_cache_is_found_and_reset(client: EngineClient) -> None:
    prompt: Prompt = {"prompt_token_ids": list(range(100, 150))}
    salted = RequestOptions(cache_salt="of this test")

    async def cached() -> int:
        started = (await ask(client, prompt, max_tokens=1, options=salted))[0]
        assert isinstance(started, Started)
        return started.cached_tokens

    assert [await cached(), await cached()] == [0, 48]
    await client.reset_prefix_cache()
    assert await cached() == 0


class Nonsense(EngineCall[None], frozen=True):
    """A call that no engine knows."""


async def test_calls_have_answers_of_their_own_type(client: EngineClient) -> None:
    assert await client.call(Flush()) is None  # type: ignore[func-returns-value]  # that is what is tested
    first, second = await asyncio.gather(client.call(Flush()), client.call(Flush()))
    assert (first, second) == (None, None)
    demand = await client.call(AskDemand())
    assert demand.is_sound
    assert demand.work == 0.0


async def test_an_unknown_call_is_an_error_and_nothing_else_is_harmed(client: EngineClient) -> None:
    asking = asyncio.create_task(ask(client, max_tokens=5))
    with pytest.raises(InternalError, match="Nonsense"):
        await client.call(Nonsense())
    assert await asking


async def test_no_template_no_chat(client: EngineClient) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        await client.render_chat([{"role": "user", "content": "hi"}], {})
    assert refused.value.param == "messages"


def heartbeat(client: EngineClient) -> float:
    return time.monotonic() - client.heartbeat_age()


async def test_the_heart_of_an_idle_engine_beats(client: EngineClient) -> None:
    for _ in range(2):
        latest = heartbeat(client) + 0.05  # what age and time differ by when they are asked for one after the other
        await until(client, lambda stats, latest=latest: heartbeat(client) > latest)  # type: ignore[misc]


async def test_the_heartbeat_of_an_engine_that_hangs_grows_old(start: Any) -> None:
    async with start(hangs_at=3) as client:
        task = asyncio.create_task(ask(client, max_tokens=20))
        async with asyncio.timeout(PATIENCE):
            while client.heartbeat_age() < 1.0:
                await asyncio.sleep(0.05)
        client.check_health()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if isinstance(client, LocalEngine):  # a thread that hangs cannot be waited for
            client._link.close = _leave  # type: ignore[method-assign]


async def _leave() -> None:
    """Nothing to wait for."""


async def test_when_the_engine_dies_every_stream_ends_with_it(start: Any) -> None:
    async with start(fails_at=12) as client:
        endings = await asyncio.gather(*(ask(client, max_tokens=100) for _ in range(30)), return_exceptions=True)
        assert all(isinstance(ending, EngineDeadError) for ending in endings), endings
        assert any("the device is gone" in str(ending) for ending in endings)
        with pytest.raises(EngineDeadError):
            client.check_health()
        with pytest.raises(EngineDeadError):
            await ask(client)
        with pytest.raises(EngineDeadError):
            await client.reset_prefix_cache()
        stats = client.stats()
        assert (stats.received, stats.active) == (31, 0)
        assert stats.received == stats.finished + stats.aborted + stats.rejected


async def test_drain_lets_requests_finish_and_refuses_new_ones(start: Any) -> None:
    async with start(step_seconds=0.01) as client:
        running = asyncio.create_task(ask(client, max_tokens=50))
        await until(client, lambda stats: stats.running > 0)
        draining = asyncio.create_task(client.drain(PATIENCE))
        await asyncio.sleep(0.05)
        with pytest.raises(DrainingError) as refused:
            await ask(client)
        assert refused.value.retry_after
        assert tokens_of(await running) == expected(PROMPT, 50, vocab=VOCAB)
        await draining
        assert client.stats().active == 0


async def test_what_outlasts_the_drain_ends_with_an_error(start: Any) -> None:
    async with start(step_seconds=0.05) as client:
        running = asyncio.create_task(ask(client, max_tokens=200))
        await until(client, lambda stats: stats.running > 0)
        await client.drain(0.2)
        with pytest.raises(DrainingError):
            await running
