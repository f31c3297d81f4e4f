"""Requests that are sent again and answers that go on, by threads and on asyncio, over a transport that answers by a script."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.client import AsyncRetryTransport, RetryBudget, RetryPolicy, RetryTransport
from jaxserve.client.sending import Settings

from .scripted import BROKEN, Script, answer, replay

URL = "http://server/v1/completions"
POLICY = RetryPolicy(retries=3, first_wait=1.0, longest_wait=30.0)
AGAIN = httpx.ConnectError("refused")


class Half:
    """Draws a half, always."""

    def random(self) -> float:
        return 0.5


def settings(policy: RetryPolicy = POLICY, budget: RetryBudget | None = None) -> Settings:
    return Settings(httpx, policy, budget or RetryBudget(), Half())  # type: ignore[arg-type]  # a Random draws, too


Ask = Callable[..., Awaitable[httpx.Response]]


async def in_thread(script: Script, given: Settings, method: str = "POST", **request: Any) -> httpx.Response:
    with httpx.Client(transport=RetryTransport(script, given, sleep=script.sleep)) as client:
        return client.request(method, URL, **({"json": {}} if method == "POST" and not request else request))


async def on_asyncio(script: Script, given: Settings, method: str = "POST", **request: Any) -> httpx.Response:
    async with httpx.AsyncClient(transport=AsyncRetryTransport(script, given, sleep=script.asleep)) as client:
        return await client.request(method, URL, **({"json": {}} if method == "POST" and not request else request))


@pytest.fixture(params=[in_thread, on_asyncio])
def ask(request: pytest.FixtureRequest) -> Ask:
    chosen: Ask = request.param
    return chosen


async def test_what_is_refused_is_asked_again_after_what_the_server_says(ask: Ask) -> None:
    script = Script([answer(status=429, retry_after="3"), answer(status=503), answer(b"yes")])
    reply = await ask(script, settings())
    assert (reply.status_code, reply.content) == (200, b"yes")
    assert script.slept == [3.5, 1.0], "half of 1 s after the 3 that were asked for, then half of 2"
    assert len(set(script.keys)) == 1
    assert script.keys[0]


async def test_the_last_answer_stands_once_retries_are_used_up(ask: Ask) -> None:
    script = Script([answer(str(number).encode(), status=503) for number in range(9)])
    reply = await ask(script, settings())
    assert (reply.status_code, reply.content, len(script.requests)) == (503, b"3", 4)


async def test_a_server_that_asks_for_more_than_the_longest_wait_is_not_asked_again(ask: Ask) -> None:
    script = Script([answer(status=429, retry_after="31")])
    assert (await ask(script, settings())).status_code == 429
    assert script.slept == []


async def test_what_did_not_reach_the_server_is_sent_again_whatever_it_is(ask: Ask) -> None:
    script = Script([AGAIN, httpx.ConnectTimeout("slow"), answer(b"yes")])
    assert (await ask(script, settings(), "DELETE")).content == b"yes"
    script = Script([AGAIN] * 4)
    with pytest.raises(httpx.ConnectError):
        await ask(script, settings())
    assert len(script.requests) == 4


async def test_what_may_have_run_is_sent_again_only_where_it_does_not_run_twice(ask: Ask) -> None:
    for method, sent in (("POST", 2), ("GET", 2), ("DELETE", 1), ("PATCH", 1)):
        script = Script([BROKEN, answer(b"yes")])
        if sent == 2:
            assert (await ask(script, settings(), method)).content == b"yes"
        else:
            with pytest.raises(httpx.ReadError):
                await ask(script, settings(), method)
        assert len(script.requests) == sent
        assert all((key is not None) == (method == "POST") for key in script.keys)


async def test_the_callers_patience_is_not_stretched(ask: Ask) -> None:
    script = Script([httpx.ReadTimeout("slow"), answer(b"yes")])
    with pytest.raises(httpx.ReadTimeout):
        await ask(script, settings())
    script = Script([answer(b"one", httpx.ReadTimeout("slow")), replay(b"one", b"two")])
    with pytest.raises(httpx.ReadTimeout):
        await ask(script, settings())


async def test_uploads_pass_as_they_are(ask: Ask) -> None:
    """Their bodies may be readable once only, and the server takes no key with them."""
    script = Script([answer(status=503), answer(b"yes")])
    reply = await ask(script, settings(), files={"file": b"content"})
    assert (reply.status_code, script.keys) == (503, [None])


async def test_a_conversations_request_has_no_key_and_is_not_sent_again_once_it_may_run(ask: Ask) -> None:
    """A second one would end the first."""
    headers = {"X-Conversation-Id": "chat"}
    script = Script([answer(status=503), answer(b"yes")])
    assert (await ask(script, settings(), json={}, headers=headers)).content == b"yes"
    assert script.keys == [None, None]
    for broken in (BROKEN, answer(b"one", BROKEN)):
        with pytest.raises(type(BROKEN)):
            await ask(Script([broken, answer(b"yes")]), settings(), json={}, headers=headers)


async def test_a_key_of_the_callers_is_kept_and_the_request_left_as_it_was(ask: Ask) -> None:
    script = Script([answer(status=503), answer(b"yes")])
    await ask(script, settings(), json={}, headers={"Idempotency-Key": "mine"})
    assert script.keys == ["mine", "mine"]
    given = settings()
    script = Script([answer(b"yes"), answer(b"yes")])
    request = httpx.Request("POST", URL, json={})
    with httpx.Client(transport=RetryTransport(script, given)) as client:
        client.send(request)
        client.send(request)
    assert "idempotency-key" not in request.headers
    assert len(set(script.keys)) == 2


async def test_an_answer_that_breaks_off_goes_on(ask: Ask) -> None:
    script = Script([answer(b"ab", b"cd", BROKEN), replay(b"a", b"bcde", BROKEN), AGAIN, replay(b"abcdefg")])
    reply = await ask(script, settings())
    assert reply.content == b"abcdefg"
    assert len(set(script.keys)) == 1
    assert script.slept == [0.5, 0.5, 1.0], "what came in between was new: the waits begin anew"


async def test_it_goes_on_whatever_ends_the_replay_before_it_is_there_again(ask: Ask) -> None:
    script = Script([answer(b"abcd", BROKEN), replay(b"ab", BROKEN), answer(status=503, retry_after="2"), replay(b"abcd", b"ef")])
    assert (await ask(script, settings())).content == b"abcdef"
    assert script.slept == [0.5, 1.0, 4.0]


@pytest.mark.parametrize(
    "again",
    [
        answer(b"abcd", b"ef"),  # runs anew: no word of a replay
        replay(b"abCd", b"ef"),
        replay(b"abc"),
        answer(status=422),
        answer(status=409, x_should_retry="false"),
    ],
)
async def test_another_answer_is_not_taken_for_the_rest(ask: Ask, again: httpx.Response) -> None:
    script = Script([answer(b"ab", b"cd", BROKEN), httpx.Response(again.status_code, headers=again.headers, stream=again.stream)])
    with pytest.raises(httpx.ReadError) as info:
        await ask(script, settings())
    assert info.value is BROKEN
    assert len(script.requests) == 2


async def test_where_nothing_was_delivered_any_answer_is_as_good(ask: Ask) -> None:
    script = Script([answer(BROKEN), answer(b"anew")])
    assert (await ask(script, settings())).content == b"anew"


async def test_a_stream_without_progress_is_given_up(ask: Ask) -> None:
    script = Script([answer(b"ab", BROKEN), *(replay(b"ab", BROKEN) for _ in range(9))])
    with pytest.raises(httpx.ReadError):
        await ask(script, settings())
    assert len(script.requests) == 1 + POLICY.retries


async def test_failures_of_requests_are_no_streams_to_go_on(ask: Ask) -> None:
    script = Script([answer(b"ab", BROKEN, status=400)])
    with pytest.raises(httpx.ReadError):
        await ask(script, settings())
    assert len(script.requests) == 1


async def test_without_a_budget_requests_go_out_once_and_streams_go_on_once(ask: Ask) -> None:
    given = settings(budget=RetryBudget(0.0, 0.0, 0.0))
    script = Script([answer(status=503), answer(b"yes")])
    assert (await ask(script, given)).status_code == 503
    script = Script([answer(b"ab", BROKEN), replay(b"ab", b"c")])
    assert (await ask(script, given)).content == b"abc"
    script = Script([answer(b"ab", BROKEN), AGAIN, replay(b"ab", b"c")])
    with pytest.raises(httpx.ReadError):
        await ask(script, given)


@given(data=st.data())
def test_bytes_are_delivered_once_and_in_order_wherever_it_breaks(data: st.DataObject) -> None:
    whole = data.draw(st.binary(min_size=1, max_size=40))

    def pieces(end: int) -> list[bytes | Exception]:
        cuts = sorted(data.draw(st.lists(st.integers(0, end), max_size=4)))
        return [whole[first:last] for first, last in zip([0, *cuts], [*cuts, end], strict=True)]

    ends = data.draw(st.lists(st.integers(0, len(whole)), max_size=3))
    outcomes = [answer(*pieces(ends[0]), BROKEN)] if ends else [answer(*pieces(len(whole)))]
    outcomes += [replay(*pieces(end), BROKEN) for end in ends[1:]]
    if ends:
        outcomes.append(replay(*pieces(len(whole))))
    script = Script(outcomes)
    with httpx.Client(transport=RetryTransport(script, settings(), sleep=script.sleep)) as client:
        assert client.post(URL, json={}).content == whole


HEDGED = RetryPolicy(retries=1, first_wait=0.0, hedge_after=0.0)


async def test_a_hedged_request_takes_the_first_answer_and_gives_up_the_other() -> None:
    script = Script([asyncio.Event(), answer(b"second")])
    assert (await on_asyncio(script, settings(HEDGED))).content == b"second"
    assert script.cancelled == 1
    assert len(set(script.keys)) == 2, "else it would not run twice"
    assert [request.headers["idempotency-grace"] for request in script.requests] == ["0", "0"]


async def test_the_refusal_of_one_does_not_stand_while_the_other_runs() -> None:
    slow = asyncio.Event()
    script = Script([slow, answer(status=503)])
    asking = asyncio.create_task(on_asyncio(script, settings(HEDGED)))
    async with asyncio.timeout(5):
        while len(script.requests) < 2:
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not asking.done()
        slow.set()
        assert (await asking).content == b"late"


@pytest.mark.parametrize("refused_first", [False, True])
async def test_of_two_that_end_together_the_good_one_is_taken(refused_first: bool) -> None:
    slow = asyncio.Event()
    outcomes = [answer(b"good"), answer(status=503)]

    class Together(Script):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            self.requests.append(request)
            mine = len(self.requests) - 1
            await slow.wait()
            return outcomes[mine - refused_first]

    script = Together([])
    asking = asyncio.create_task(on_asyncio(script, settings(HEDGED)))
    async with asyncio.timeout(5):
        while len(script.requests) < 2:
            await asyncio.sleep(0)
        slow.set()
        assert (await asking).content == b"good"


async def test_a_hedge_takes_from_the_budget_and_ends_with_its_caller() -> None:
    slow = asyncio.Event()
    script = Script([slow, answer(b"never asked")])
    asking = asyncio.create_task(on_asyncio(script, settings(HEDGED, RetryBudget(0.0, 0.0, 0.0))))
    async with asyncio.timeout(5):
        while not script.requests:
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert (len(script.requests), script.cancelled) == (1, 1)


async def test_only_posts_are_hedged() -> None:
    script = Script([answer(b"yes")])
    assert (await on_asyncio(script, settings(HEDGED), "GET")).content == b"yes"
