"""Answers under idempotency keys: made once, read by everybody who comes with the key, live or later."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from jaxserve.clock import VirtualClock
from jaxserve.errors import ConflictError, IdempotencyError, InternalError, InvalidRequestError
from server.gateway.idempotency import IdempotencyCache, fingerprint
from server.gateway.ledger import LedgerState, LocalUsageLedger, RemoteUsageLedger
from server.gateway.messages import Claim, Forget, Message, Reply, Share
from server.gateway.recording import Recording
from server.gateway.recordings import Add, Recordings
from server.gateway.results import MAX_RESULT_BYTES


class Maker:
    """Makes "one", "two", ... as it is told to."""

    def __init__(self) -> None:
        self.runs = 0
        self.cancelled = 0
        self.go_on: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.worth = True

    async def __call__(self, add: Add) -> bool:
        self.runs += 1
        try:
            while (piece := await self.go_on.get()) is not None:
                if isinstance(piece, Exception):
                    raise piece
                await add(piece)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.worth

    def say(self, *pieces: bytes | Exception | None) -> None:
        for piece in pieces:
            self.go_on.put_nowait(piece)


@pytest.fixture
def state() -> LedgerState:
    return LedgerState(VirtualClock(), 0.0)


@pytest.fixture
def answers(state: LedgerState) -> IdempotencyCache:
    return IdempotencyCache(Recordings(LocalUsageLedger(state), "here"))


@pytest.fixture
def patient(state: LedgerState) -> IdempotencyCache:
    """Goes on with what nobody reads for longer than the test runs."""
    return IdempotencyCache(Recordings(LocalUsageLedger(state), "here"), grace=1000.0)


@pytest.fixture
def elsewhere(state: LedgerState) -> IdempotencyCache:
    """Another front end, which reaches the ledger over a wire."""

    async def call(message: Message) -> Reply:
        await asyncio.sleep(0)
        return state.handle(message)

    return IdempotencyCache(Recordings(RemoteUsageLedger(call), "there"))


async def read(
    answers: IdempotencyCache, make: Maker, *, key: str = "k", body: bytes = b"1", scope: str = "acme"
) -> list[tuple[bool, bytes]]:
    return [item async for item in answers.read("", scope, key, body, make)]


async def settled(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


async def test_a_repeated_key_gets_the_first_result(answers: IdempotencyCache) -> None:
    make = Maker()
    make.say(b"one", b"two", None)
    assert await read(answers, make) == [(False, b"one"), (False, b"two")]
    assert await read(answers, make) == [(True, b"one"), (True, b"two")]
    assert make.runs == 1
    make.say(None, None)
    assert await read(answers, make, scope="globex") == []
    assert await read(answers, make, key="l") == []
    assert make.runs == 3


async def test_a_repeated_key_joins_what_runs_from_its_start(answers: IdempotencyCache) -> None:
    make = Maker()
    make.say(b"one")
    first = answers.read("acme", "acme", "k", b"1", make)
    assert await anext(first) == (False, b"one")
    second = answers.read("acme", "acme", "k", b"1", make)
    assert await anext(second) == (True, b"one")
    make.say(b"two", None)
    assert [item async for item in second] == [(True, b"two")]
    assert [item async for item in first] == [(False, b"two")]
    assert make.runs == 1


async def test_another_request_with_the_key_is_refused(answers: IdempotencyCache) -> None:
    make = Maker()
    make.say(b"one")
    first = answers.read("acme", "acme", "k", b"1", make)
    await anext(first)
    with pytest.raises(IdempotencyError):
        await read(answers, make, body=b"2")
    make.say(None)
    assert [item async for item in first] == []
    with pytest.raises(IdempotencyError):
        await read(answers, make, body=b"2")


async def test_what_is_not_worth_keeping_runs_again(answers: IdempotencyCache) -> None:
    make = Maker()
    make.worth = False
    make.say(b"one", None, b"two", None)
    assert await read(answers, make) == [(False, b"one")]
    assert await read(answers, make, body=b"2") == [(False, b"two")]


async def test_a_failure_reaches_all_readers_and_is_not_kept(answers: IdempotencyCache) -> None:
    make = Maker()
    make.say(b"one")
    first = answers.read("acme", "acme", "k", b"1", make)
    await anext(first)
    second = asyncio.create_task(read(answers, make))
    await asyncio.sleep(0.01)
    make.say(InternalError("broken"))
    for reading in (anext(first), second):
        with pytest.raises(InternalError, match="broken"):
            await reading
    make.say(None)
    assert await read(answers, make, body=b"2") == []


async def test_it_runs_as_long_as_anybody_reads(answers: IdempotencyCache) -> None:
    make = Maker()
    make.say(b"one")
    first, second = answers.read("acme", "acme", "k", b"1", make), answers.read("acme", "acme", "k", b"1", make)
    await anext(first)
    await anext(second)
    await first.aclose()
    make.say(b"two")
    assert await anext(second) == (True, b"two")
    assert make.cancelled == 0
    await second.aclose()
    make.say(b"three", None)
    assert await read(answers, make) == [(False, b"three")], "who comes while it is cancelled does not get what breaks off"
    assert (make.cancelled, make.runs) == (1, 2)


async def test_it_goes_on_for_who_comes_back(patient: IdempotencyCache) -> None:
    make = Maker()
    make.say(b"one")
    first = patient.read("", "acme", "k", b"1", make)
    await anext(first)
    await first.aclose()
    make.say(b"two")
    second = patient.read("", "acme", "k", b"1", make)
    assert [await anext(second), await anext(second)] == [(True, b"one"), (True, b"two")]
    await second.aclose()
    make.say(None)
    await settled(lambda: not patient._recordings._made_here)
    assert await read(patient, make) == [(True, b"one"), (True, b"two")]
    assert (make.runs, make.cancelled, patient._recordings._left) == (1, 0, {})


async def test_it_ends_when_nobody_comes_back_in_time(state: LedgerState) -> None:
    answers, make = IdempotencyCache(Recordings(LocalUsageLedger(state), "here"), grace=0.02), Maker()
    make.say(b"one")
    first = answers.read("", "acme", "k", b"1", make)
    await anext(first)
    await first.aclose()
    await settled(lambda: make.cancelled == 1)
    make.say(b"anew", None)
    assert await read(answers, make) == [(False, b"anew")]


async def test_a_reader_may_ask_for_less_grace_but_not_for_more(patient: IdempotencyCache, answers: IdempotencyCache) -> None:
    make = Maker()
    for number, (cache, grace) in enumerate(((patient, 0.0), (answers, 1000.0)), 1):
        make.say(b"one")
        first = cache.read("", "acme", str(number), b"1", make, grace)
        await anext(first)
        await first.aclose()
        await settled(partial(lambda count: make.cancelled == count, number))


async def test_an_account_leaves_no_more_than_its_bound(patient: IdempotencyCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest of its own are given up, and nobody else's."""
    monkeypatch.setattr("server.gateway.recordings.MAX_LEFT", 2)
    monkeypatch.setattr("server.gateway.recordings.MAX_LEFT_BYTES", 100)
    makers = {key: Maker() for key in ("other", "a", "b", "c", "long")}
    for key, make in makers.items():
        make.say(bytes(90) if key == "long" else bytes(20))
        reader = patient.read("one" if key == "other" else "two", "acme", key, b"1", make)
        await anext(reader)
        await reader.aclose()
        await asyncio.sleep(0)
    await settled(lambda: makers["b"].cancelled == 1)
    assert {key: make.cancelled for key, make in makers.items()} == {"other": 0, "a": 1, "b": 1, "c": 1, "long": 0}
    for make in makers.values():
        make.say(None)
    await settled(lambda: not patient._recordings._made_here)


async def test_what_grows_too_long_while_nobody_reads_ends(patient: IdempotencyCache) -> None:
    make = Maker()
    make.say(b"one")
    first = patient.read("", "acme", "k", b"1", make)
    await anext(first)
    await first.aclose()
    make.say(bytes(MAX_RESULT_BYTES))
    await settled(lambda: make.cancelled == 1)


async def test_a_key_whose_answer_is_too_long_is_refused_while_it_runs(
    answers: IdempotencyCache, elsewhere: IdempotencyCache
) -> None:
    make = Maker()
    make.say(bytes(MAX_RESULT_BYTES), b"more")
    first = answers.read("", "acme", "k", b"1", make)
    assert [await anext(first), await anext(first)] == [(False, bytes(MAX_RESULT_BYTES)), (False, b"more")]
    for cache in (answers, elsewhere):
        with pytest.raises(ConflictError, match="'k' is longer than"):
            await read(cache, Maker())
    make.say(None)
    assert [item async for item in first] == []


async def test_another_front_end_reads_what_runs_as_it_comes(patient: IdempotencyCache, elsewhere: IdempotencyCache) -> None:
    make, other = Maker(), Maker()
    make.say(b"one", b"two")
    first = patient.read("", "acme", "k", b"1", make)
    await anext(first)
    await first.aclose()
    second = elsewhere.read("", "acme", "k", b"1", other)
    assert [await anext(second), await anext(second)] == [(True, b"one"), (True, b"two")]
    make.say(b"three")
    assert await anext(second) == (True, b"three")
    make.say(b"four", None)
    assert [item async for item in second] == [(True, b"four")]
    assert (make.runs, other.runs) == (1, 0)


async def test_what_is_read_elsewhere_goes_on_without_any_grace(answers: IdempotencyCache, elsewhere: IdempotencyCache) -> None:
    make = Maker()
    make.say(b"one")
    first, second = (cache.read("", "acme", "k", b"1", make) for cache in (answers, elsewhere))
    await anext(first)
    assert await anext(second) == (True, b"one")
    await first.aclose()
    make.say(b"two")
    assert await anext(second) == (True, b"two")
    make.say(None)
    assert [item async for item in second] == []
    assert (make.runs, make.cancelled) == (1, 0)


async def test_what_breaks_off_is_not_continued_by_another_run(
    state: LedgerState, answers: IdempotencyCache, elsewhere: IdempotencyCache
) -> None:
    """The front end that made it is gone, and somebody else has come with the key since."""
    for again in (False, True):
        make = Maker()
        make.say(b"one")
        first, second = (cache.read("", "acme", "k", b"1", make) for cache in (answers, elsewhere))
        await anext(first)
        assert await anext(second) == (True, b"one")
        state.forget(Forget("here"))
        if again:
            state.handle(Claim("third", "t", "", "acme", "k", b"1"))
            state.handle(Share("t", "acme", "k", 0, [b"other", b"answer"]))
        with pytest.raises(InternalError, match="broke off"):
            await anext(second)
        make.say(None)
        assert [item async for item in first] == []
        state.forget(Forget("third"))


async def test_what_runs_here_runs_once_though_the_ledger_has_forgotten_it(
    state: LedgerState, answers: IdempotencyCache, elsewhere: IdempotencyCache
) -> None:
    """A ledger that began anew, or took this front end for gone, says "new" of a key whose answer is being made here."""
    make, again = Maker(), Maker()
    make.say(b"one")
    first = answers.read("", "acme", "k", b"1", make)
    await anext(first)
    state.forget(Forget("here"))
    second = asyncio.create_task(read(answers, again))
    make.say(b"two", None)
    assert await second == [(True, b"one"), (True, b"two")]
    assert [piece async for _, piece in first] == [b"two"]
    assert (make.runs, again.runs) == (1, 0)
    for cache in (answers, elsewhere):  # the key is not taken for ever
        maker = Maker()
        maker.say(b"one", b"two", None)
        assert [piece for _, piece in await read(cache, maker)] == [b"one", b"two"]


async def test_another_front_end_waits_for_the_result(answers: IdempotencyCache, elsewhere: IdempotencyCache) -> None:
    make, other = Maker(), Maker()
    make.say(b"one")
    first = answers.read("acme", "acme", "k", b"1", make)
    await anext(first)
    waiting = asyncio.create_task(read(elsewhere, other))
    with pytest.raises(IdempotencyError):
        await read(elsewhere, other, body=b"2")
    make.say(b"two", None)
    assert [item async for item in first] == [(False, b"two")]
    assert await waiting == [(True, b"one"), (True, b"two")]
    assert other.runs == 0


async def test_another_front_end_takes_over_what_failed(answers: IdempotencyCache, elsewhere: IdempotencyCache) -> None:
    make, other = Maker(), Maker()
    first = asyncio.create_task(read(answers, make))
    await settled(lambda: make.runs == 1)
    waiting = asyncio.create_task(read(elsewhere, other))
    other.say(b"one", None)
    make.say(InternalError("broken"))
    with pytest.raises(InternalError):
        await first
    assert await waiting == [(False, b"one")]


async def test_a_reader_that_leaves_while_it_asks_claims_nothing(state: LedgerState) -> None:
    gate = asyncio.Event()

    async def call(message: Message) -> Reply:
        answer = state.handle(message)
        await gate.wait()
        return answer

    answers, make = IdempotencyCache(Recordings(RemoteUsageLedger(call), "here")), Maker()
    leaving = asyncio.create_task(read(answers, make))
    await asyncio.sleep(0)
    staying = asyncio.create_task(read(answers, make))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    gate.set()
    make.say(b"one", None)
    async with asyncio.timeout(5):
        assert await staying == [(False, b"one")]
    assert make.runs == 1


@pytest.mark.parametrize("key", ["", "x" * 256, "é", "a\nb"])
async def test_what_is_no_key_is_refused(answers: IdempotencyCache, key: str) -> None:
    with pytest.raises(InvalidRequestError):
        await read(answers, Maker(), key=key)


async def test_a_long_answer_is_not_held_as_a_whole() -> None:
    recording, piece = Recording(), bytes(MAX_RESULT_BYTES)
    added = 0

    async def making() -> None:
        nonlocal added
        for _ in range(3):
            await recording.add(piece)
            added += 1

    recording.start(making())
    pieces = recording.read()
    assert await anext(pieces) == piece
    await settled(lambda: added == 1)
    await asyncio.sleep(0.01)
    assert added == 1, "the second piece waits for the reader"
    assert not recording.kept
    assert [await anext(pieces), await anext(pieces)] == [piece, piece]
    assert [one async for one in pieces] == []
    assert recording.whole() is None


def test_fingerprints_tell_where_parts_end() -> None:
    assert fingerprint((b"ab", b"c")) != fingerprint((b"a", b"bc"))
    assert fingerprint((b"ab", b"c")) == fingerprint([b"ab", b"c"])
