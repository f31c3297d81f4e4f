"""Limits that several ingresses hold together, whatever is lost between them and the ledger that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jaxserve.clock import VirtualClock
from jaxserve.config.keys_file import TenantLimits
from jaxserve.errors import JaxserveError, OverloadedError
from server.gateway.account import DAY
from server.gateway.buckets import MINUTE
from server.gateway.leased import SPARE_SHARE, LeasedLedger
from server.gateway.messages import (
    Claim,
    Claimed,
    Entry,
    Forget,
    Granted,
    Keep,
    Levels,
    Listed,
    ListKept,
    Message,
    Peek,
    Refused,
    Release,
    Reply,
    Reserve,
    Revoke,
    Revoked,
    Settle,
    Wanted,
    Watch,
)
from server.gateway.shared import LEARN_SECONDS, LEASE_SECONDS, STRIKE_SECONDS, GiveBack, Shared, SharedLedger, SharedReply

NOON = 100 * 86_400.0 + 43_200.0
SECOND = 1_000_000


@dataclass
class Post:
    """Carries messages of one ingress at once; or holds them back, or loses them."""

    name: str
    fleet: Fleet
    cut: bool = False
    held: list[tuple[Shared, asyncio.Future[SharedReply]]] | None = None

    async def ask(self, message: Shared) -> SharedReply:
        if self.cut:
            raise OverloadedError("cut off")
        if self.held is None:
            return self.fleet.shared.handle(self.name, message)
        answer: asyncio.Future[SharedReply] = asyncio.get_running_loop().create_future()
        self.held.append((message, answer))
        return await answer

    def deliver(self, *, lost: Literal["message", "answer"] | None = None) -> None:
        assert self.held
        message, answer = self.held.pop(0)
        try:
            if lost == "message":
                raise OverloadedError("lost")
            told = self.fleet.shared.handle(self.name, message)
            if lost == "answer":
                raise OverloadedError("lost")
            answer.set_result(told)
        except JaxserveError as error:
            answer.set_exception(error)


@dataclass
class Fleet:
    """Ingresses and what they share, on a virtual clock."""

    limits: TenantLimits
    count: int = 2
    admits: bool = False
    clock: VirtualClock = field(default_factory=VirtualClock)
    number: int = 0

    def __post_init__(self) -> None:
        self.shared = SharedLedger(self.clock, NOON, again=False)
        self.posts = [Post(f"i{place}", self) for place in range(self.count)]
        self.ledgers = [
            LeasedLedger(post.name, post.ask, self.clock, among=self.count, admits=self.admits) for post in self.posts
        ]
        for place, ledger in enumerate(self.ledgers):
            ledger.addresses = (f"http://{place}", f"grpc://{place}")

    def restart(self) -> None:
        self.shared = SharedLedger(self.clock, NOON + self.clock.now(), again=True)

    def message(self, prompt: int, most: int | None = 0, *, owner: str = "0.0", background: bool = False) -> Reserve:
        self.number += 1
        return Reserve(owner, f"r{self.number}", "acme", self.limits, prompt, 1, most, background)

    async def ask(self, place: int, prompt: int, most: int | None = 0, *, background: bool = False) -> Granted | Refused:
        answer = await reply(self.ledgers[place].handle(self.message(prompt, most, background=background)))
        assert isinstance(answer, Granted | Refused)
        return answer

    async def settle(self, place: int, number: int, tokens: int) -> None:
        self.ledgers[place].handle(Settle(f"r{number}", tokens, 0, 0))
        await quiet()

    async def levels(self, place: int = 0) -> Levels:
        levels = await reply(self.ledgers[place].handle(Peek("acme", self.limits)))
        assert isinstance(levels, Levels)
        return levels

    async def beat(self) -> None:
        for ledger in self.ledgers:
            await ledger.beat()
        await quiet()


async def reply(answer: Reply | Awaitable[Reply]) -> Reply:
    return await answer if isinstance(answer, Awaitable) else answer


async def quiet() -> None:
    """Let everything that can go on go on."""
    for _ in range(6):
        await asyncio.sleep(0)


async def granted(fleet: Fleet, place: int, prompt: int, *, most: int = 1000) -> int:
    """How many requests of this size one ingress admits in a row."""
    for count in range(most):
        if isinstance(await fleet.ask(place, prompt), Refused):
            return count
    return most


async def test_together_they_admit_what_one_would() -> None:
    fleet = Fleet(TenantLimits(tpm=1600), count=4)
    admitted = 0
    for _ in range(100):
        for place in range(4):
            admitted += isinstance(await fleet.ask(place, 10), Granted)
    assert admitted == 160
    fleet.clock.advance(15.0)
    assert sum([await granted(fleet, place, 10) for place in range(4)]) == 40


async def test_most_requests_wait_for_nobody() -> None:
    fleet = Fleet(TenantLimits(rpm=16_000, tpm=1_600_000))
    assert isinstance(await fleet.ask(0, 10), Granted)
    at_once = [isinstance(fleet.ledgers[0].handle(fleet.message(10)), Granted) for _ in range(1000)]
    assert all(at_once), "a share is drawn for a sixteenth of a minute's requests"
    answer = fleet.ledgers[0].handle(fleet.message(10))
    assert isinstance(answer, Awaitable)
    assert isinstance(await answer, Granted)


async def test_what_is_not_taken_is_there_for_others() -> None:
    fleet = Fleet(TenantLimits(tpm=800, max_concurrent=2))
    assert isinstance(await fleet.ask(0, 800), Granted)
    assert isinstance(await fleet.ask(1, 100), Refused)
    await fleet.settle(0, 1, 300)
    answer = await fleet.ask(1, 450)
    assert isinstance(answer, Granted)
    refused = await fleet.ask(1, 450)
    assert isinstance(refused, Refused)
    assert (refused.limit, refused.allowed, refused.asked) == ("tokens", 800, 450)


async def test_a_request_that_took_more_leaves_a_debt_that_all_see() -> None:
    fleet = Fleet(TenantLimits(tpm=800))
    await fleet.ask(0, 10)
    await fleet.settle(0, 1, 810)
    refused = await fleet.ask(1, 50)
    assert isinstance(refused, Refused)
    assert refused.wait is not None
    fleet.clock.advance(60 * 60 / 800 + 1)  # ten of debt and fifty
    assert isinstance(await fleet.ask(1, 50), Granted)


async def test_places_are_counted_together_and_come_back() -> None:
    fleet = Fleet(TenantLimits(max_concurrent=3))
    assert [type(await fleet.ask(place, 1)) for place in (0, 1, 0, 1)] == [Granted, Granted, Granted, Refused]
    fleet.ledgers[0].handle(Forget("0.0"))
    await quiet()
    assert [type(await fleet.ask(1, 1)) for _ in range(3)] == [Granted, Granted, Refused]


async def test_an_ingress_that_dies_gives_back_its_places_when_its_lease_has_ended() -> None:
    fleet = Fleet(TenantLimits(max_concurrent=1))
    await fleet.ask(0, 1)
    fleet.clock.advance(STRIKE_SECONDS - 1)
    assert isinstance(await fleet.ask(1, 1), Refused)
    fleet.clock.advance(2.0)
    assert isinstance(await fleet.ask(1, 1), Granted)


async def test_lines_of_batches_take_of_the_day_alone() -> None:
    fleet = Fleet(TenantLimits(rpm=1, tpm=10, max_concurrent=1, daily_tokens=10_000))
    assert isinstance(await fleet.ask(0, 9_000, background=True), Granted)
    assert isinstance(await fleet.ask(1, 10), Granted)
    refused = await fleet.ask(1, 2_000, background=True)
    assert isinstance(refused, Refused)
    assert refused.limit == "daily"
    too_large = await fleet.ask(1, 10_001, background=True)
    assert isinstance(too_large, Refused)
    assert too_large.limit == "size"
    fleet.clock.advance(DAY / SECOND)
    assert isinstance(await fleet.ask(0, 9_000, background=True), Granted)


@pytest.mark.parametrize("admits", [False, True])
async def test_without_the_ledger_what_is_held_is_granted_and_then_it_is_as_set(admits: bool) -> None:
    fleet = Fleet(TenantLimits(tpm=1600), admits=admits)
    await fleet.ask(0, 10)  # draws a spare of 100
    fleet.posts[0].cut = True
    assert [type(await fleet.ask(0, 50)) for _ in range(2)] == [Granted, Granted]
    if not admits:
        with pytest.raises(OverloadedError, match="cannot be looked at now"):
            await fleet.ask(0, 50)
        return
    assert isinstance(await fleet.ask(0, 800), Granted)
    fleet.posts[0].cut = False
    await fleet.beat()  # what was let in is charged now: 10, 100 and 800 of 1600
    assert isinstance(await fleet.ask(1, 700), Refused)
    assert isinstance(await fleet.ask(1, 600), Granted)


async def test_what_is_held_lapses_with_the_lease() -> None:
    fleet = Fleet(TenantLimits(tpm=1600, max_concurrent=32))
    await fleet.ask(0, 10)
    await fleet.beat()
    fleet.posts[0].cut = True
    fleet.clock.advance(LEASE_SECONDS + 1)
    await fleet.ledgers[0].beat()
    with pytest.raises(OverloadedError):
        await fleet.ask(0, 10)
    fleet.clock.advance(STRIKE_SECONDS)
    assert [type(await fleet.ask(1, 1)) for _ in range(31)] == [Granted] * 31  # its places are free, its free ones too
    fleet.posts[0].cut = False
    await fleet.beat()
    await fleet.beat()
    await fleet.settle(0, 1, 0)
    assert isinstance(await fleet.ask(0, 10), Granted)


async def test_a_ledger_that_was_started_again_gives_nothing_twice() -> None:
    fleet = Fleet(TenantLimits(tpm=800, daily_tokens=10_000, max_concurrent=4))
    for place in (0, 1, 0):
        assert isinstance(await fleet.ask(place, 200), Granted)
    fleet.restart()
    with pytest.raises(OverloadedError, match="started again"):
        await fleet.ask(0, 200)
    await fleet.beat()
    fleet.clock.advance(LEARN_SECONDS)
    assert isinstance(await fleet.ask(0, 200), Refused)  # its bucket is empty, and nothing flowed in before it was asked for
    fleet.clock.advance(20.0)
    assert isinstance(await fleet.ask(0, 200), Granted)
    fleet.clock.advance(60.0)
    await fleet.beat()
    refused = await fleet.ask(0, 600)
    assert isinstance(refused, Refused)
    assert (refused.limit, refused.used) == ("concurrent", 4)
    await fleet.settle(0, 1, 200)
    refused = await fleet.ask(1, 9_500, background=True)
    assert isinstance(refused, Refused)
    assert refused.limit == "daily"
    assert refused.used >= 800


async def test_every_ingress_knows_the_day_of_all() -> None:
    """Also where the one that took most dies with the ledger."""
    fleet = Fleet(TenantLimits(daily_tokens=1000))
    await fleet.ask(0, 100)
    await fleet.ask(1, 800)
    await fleet.beat()
    fleet.restart()
    await fleet.ledgers[0].beat()
    fleet.clock.advance(LEARN_SECONDS)
    assert isinstance(await fleet.ask(0, 150), Refused)
    assert isinstance(await fleet.ask(0, 50), Granted)


async def test_a_reservation_that_nobody_waits_for_any_more_is_given_back() -> None:
    fleet = Fleet(TenantLimits(tpm=100, max_concurrent=1))
    fleet.posts[0].held = []
    waiting = asyncio.ensure_future(reply(fleet.ledgers[0].handle(fleet.message(100))))
    await quiet()
    fleet.ledgers[0].handle(Settle("r1", 0, 0, 0))  # its caller went away
    fleet.posts[0].deliver()
    assert isinstance(await waiting, Granted)
    await quiet()
    fleet.posts[0].deliver()  # what is given back
    assert isinstance(await fleet.ask(1, 94), Granted)


async def test_what_an_idle_tenant_holds_comes_back() -> None:
    fleet = Fleet(TenantLimits(max_concurrent=32))
    await fleet.ask(0, 1)
    await fleet.settle(0, 1, 1)
    assert sum([isinstance(await fleet.ask(1, 1), Granted) for _ in range(32)]) == 30
    await fleet.beat()
    await fleet.beat()
    assert sum([isinstance(await fleet.ask(1, 1), Granted) for _ in range(32)]) == 2


async def test_what_runs_at_one_ingress_is_listed_and_revoked_at_another() -> None:
    fleet = Fleet(TenantLimits())

    async def asked(place: int, message: Message) -> Reply:
        return await reply(fleet.ledgers[place].handle(message))

    anew = Claim("0.0", "t0", "acme", "acme", "s", b"", begin="anew")
    look = Claim("0.0", "t1", "acme", "acme", "s", b"", begin="never")
    assert await asked(1, look) == Claimed("none")
    assert await asked(0, anew) == Claimed("new", "i0/0.0")
    assert await asked(1, ListKept("acme", "acme", "")) == Listed([Entry("s", "running", 0.0)])
    assert await asked(1, Revoke("acme", "s")) == Revoked(True)
    assert await asked(0, Watch("0.0")) == Wanted({}, ["t0"])
    assert await asked(1, Watch("0.0")) == Wanted({})
    assert await asked(1, Revoke("acme", "s")) == Revoked(False)


async def test_who_only_looks_is_let_begin_nothing_while_the_ledger_is_away() -> None:
    fleet = Fleet(TenantLimits(), admits=True)
    fleet.posts[0].cut = True
    look = Claim("0.0", "t", "acme", "acme", "s", b"", begin="never")
    assert await reply(fleet.ledgers[0].handle(look)) == Claimed("none")


async def test_idempotency_keys_hold_across_ingresses() -> None:
    fleet = Fleet(TenantLimits())

    def claim(token: str, fingerprint: bytes = b"f") -> Claim:
        return Claim("0.0", token, "acme", "acme", "key", fingerprint)

    async def claimed(place: int, one: Claim) -> Claimed:
        answer = await reply(fleet.ledgers[place].handle(one))
        assert isinstance(answer, Claimed)
        return answer

    assert (await claimed(0, claim("t0"))).state == "new"
    assert (await claimed(1, claim("t1"))).state == "running"  # although its front end is called the same
    assert (await claimed(1, claim("t1", b"another"))).state == "other"
    fleet.ledgers[1].handle(Forget("0.0"))
    await quiet()
    assert (await claimed(1, claim("t2"))).state == "running"
    fleet.ledgers[0].handle(Keep("t0", "acme", "key", b"answer"))
    await quiet()
    done = await claimed(1, claim("t3"))
    assert (done.state, done.result) == ("done", b"answer")
    second = Claim("0.1", "t4", "acme", "acme", "other", b"f")
    assert (await claimed(0, second)).state == "new"
    fleet.ledgers[0].handle(Release("t4", "acme", "other"))
    await quiet()
    assert (await claimed(1, second)).state == "new"
    fleet.posts[0].cut = True
    with pytest.raises(OverloadedError, match="idempotency keys"):
        await claimed(0, claim("t5"))


async def test_levels_are_those_of_all() -> None:
    fleet = Fleet(TenantLimits(rpm=160, tpm=1600))
    levels = await fleet.levels()
    assert [level and level.remaining for level in (levels.requests, levels.tokens)] == [160, 1600]
    await fleet.ask(0, 500)
    await fleet.ask(1, 500)
    known = await fleet.levels(1)
    assert known.tokens is not None
    assert known.requests is not None
    assert 500 <= known.tokens.remaining <= 600
    assert 148 <= known.requests.remaining <= 158


class Leasing(RuleBasedStateMachine):
    """Three ingresses whose messages come late, are lost, or never come, and a ledger that is started again."""

    LIMITS = TenantLimits(rpm=48, tpm=480, max_concurrent=6, daily_tokens=3000)

    @initialize()
    def start(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.fleet = Fleet(self.LIMITS, count=3)
        for post in self.fleet.posts:
            post.held = []
        self.asked: dict[int, tuple[int, int, asyncio.Future[Reply]]] = {}  # number -> ingress, tokens, answer
        self.open: dict[int, tuple[int, int]] = {}
        self.charged: list[tuple[int, int, int]] = []  # when, tokens, what could come back or was drawn before
        self.returned = 0
        self.lost = False  # whether something was, so that what is to go back may have to wait

    def now(self) -> int:
        return int(self.fleet.clock.now() * SECOND)

    def run(self) -> None:
        self.loop.run_until_complete(quiet())
        for number, (place, tokens, answer) in list(self.asked.items()):
            if not answer.done():
                continue
            del self.asked[number]
            if answer.exception() is None and isinstance(answer.result(), Granted):
                before = self.drawn_before() + tokens - self.returned
                self.open[number] = (place, tokens)
                self.charged.append((self.now(), tokens, before))

    def drawn_before(self) -> int:
        """Tokens that were taken from the limit and let nobody in yet: held, asked for, or on their way back."""
        held = sum(ledger._tenants["acme"].held.tokens for ledger in self.fleet.ledgers)
        back = sum(
            message.amounts.tokens for post in self.fleet.posts for message, _ in post.held or () if isinstance(message, GiveBack)
        )
        return held + back + sum(tokens for _, tokens, _ in self.asked.values())

    @rule(place=st.integers(0, 2), tokens=st.integers(1, 200))
    def ask(self, place: int, tokens: int) -> None:
        message = self.fleet.message(tokens)

        async def asking() -> Reply:
            return await reply(self.fleet.ledgers[place].handle(message))

        self.asked[self.fleet.number] = (place, tokens, self.loop.create_task(asking()))
        self.run()

    @rule(place=st.integers(0, 2), lost=st.sampled_from([None, None, None, "message", "answer"]), how_many=st.integers(1, 4))
    def deliver(self, place: int, lost: Literal["message", "answer"] | None, how_many: int) -> None:
        post = self.fleet.posts[place]
        for _ in range(min(how_many, len(post.held or ()))):
            self.lost |= lost is not None
            post.deliver(lost=lost)
            self.run()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        place, tokens = self.open.pop(number)
        used = data.draw(st.integers(0, tokens))
        self.returned += tokens - used
        self.loop.run_until_complete(self.fleet.settle(place, number, used))

    @rule(place=st.integers(0, 2))
    def beat(self, place: int) -> None:
        self.loop.create_task(self.fleet.ledgers[place].beat())
        self.run()

    @rule(tenths=st.integers(1, 200))
    def wait(self, tenths: int) -> None:
        self.fleet.clock.advance(tenths / 10)

    @rule()
    def restart(self) -> None:
        """What was on its way is lost, and every ingress says a word within the time that the new one listens."""
        for post in self.fleet.posts:
            while post.held:
                self.lost = True
                post.deliver(lost="message")
                self.run()
        self.fleet.restart()
        for ledger, post in zip(self.fleet.ledgers, self.fleet.posts, strict=True):
            self.loop.create_task(ledger.beat())
            self.run()
            while post.held:
                post.deliver()
                self.run()

    @invariant()
    def never_over_the_limits(self) -> None:
        if not hasattr(self, "charged"):
            return
        taken = sum(tokens for _, tokens, _ in self.charged) - self.returned
        assert taken * MINUTE <= 480 * (MINUTE + self.now()), "since the start nothing is let in beyond the limit"
        assert taken <= 3000
        for first, (when, _, before) in enumerate(self.charged):
            admitted = sum(tokens for _, tokens, _ in self.charged[first:])
            allowed = 480 * (MINUTE + self.now() - when) + (before + self.returned) * MINUTE
            assert admitted * MINUTE <= allowed, "in any time the limit, and what was drawn before or came back"

    @invariant()
    def little_is_held(self) -> None:
        if not hasattr(self, "charged"):
            return
        for ledger in self.fleet.ledgers:
            assert self.lost or ledger._tenants["acme"].held.tokens <= 480 // SPARE_SHARE // 3

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            for _, _, answer in self.asked.values():
                answer.cancel()
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(quiet())
            self.loop.close()


TestLeasing = Leasing.TestCase
TestLeasing.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
