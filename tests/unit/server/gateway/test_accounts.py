"""Tenants' accounts on a virtual clock: estimates, settlements, refusals with the exact time."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jaxserve.config.keys_file import TenantLimits
from server.gateway.account import DAY, FIRST_GUESS
from server.gateway.accounts import Accounts
from server.gateway.buckets import MINUTE
from server.gateway.messages import Granted, Level, Refused, Reserve, Settle

NOON = DAY // 2


@dataclass
class Bench:
    limits: TenantLimits
    epoch: int = 100 * DAY + NOON
    now: int = 0
    count: int = 0
    accounts: Accounts = field(init=False)

    def __post_init__(self) -> None:
        self.accounts = Accounts(self.epoch)

    def ask(
        self,
        prompt: int = 10,
        most: int | None = 10,
        *,
        sequences: int = 1,
        tenant: str = "acme",
        owner: str = "a",
        background: bool = False,
    ) -> Granted | Refused:
        self.count += 1
        ask = Reserve(owner, f"r{self.count}", tenant, self.limits, prompt, sequences, most, background)
        return self.accounts.reserve(ask, self.now)

    def settle(self, prompt: int, output: int, *, number: int | None = None, finished: int = 1) -> None:
        self.accounts.settle(Settle(f"r{number or self.count}", prompt, output, finished), self.now)

    def remaining(self, tenant: str = "acme") -> tuple[int | None, int | None]:
        levels = self.accounts.peek(tenant, self.limits, self.now)
        requests, tokens = (None if level is None else level.remaining for level in (levels.requests, levels.tokens))
        return requests, tokens


def test_an_estimate_is_charged_and_then_what_was_used() -> None:
    bench = Bench(TenantLimits(rpm=10, tpm=1000))
    granted = bench.ask(100, 50, sequences=3)
    assert isinstance(granted, Granted)
    assert granted.levels.tokens == Level(1000, 750, MINUTE // 4)
    assert granted.levels.requests == Level(10, 9, MINUTE // 10)
    bench.settle(90, 20)
    assert bench.remaining() == (9, 890)
    bench.settle(90, 20)  # again: nothing happens
    assert bench.remaining() == (9, 890)
    bench.ask(100, 50)
    bench.settle(0, 0, finished=0)
    assert bench.remaining() == (8, 890)
    assert bench.remaining("globex") == (10, 1000)


def test_a_refusal_knows_the_exact_time_and_charges_nothing() -> None:
    bench = Bench(TenantLimits(tpm=600))
    assert isinstance(bench.ask(300, 200), Granted)
    refused = bench.ask(100, 50)
    assert isinstance(refused, Refused)
    assert (refused.limit, refused.wait, refused.allowed, refused.used, refused.asked) == ("tokens", 5_000_000, 600, 500, 150)
    bench.now = 4_999_999
    early = bench.ask(100, 50)
    assert isinstance(early, Refused)
    assert early.wait == 1
    bench.now = 5_000_000
    assert isinstance(bench.ask(100, 50), Granted)


def test_the_longer_of_two_waits_is_told() -> None:
    bench = Bench(TenantLimits(rpm=1, tpm=60))
    bench.ask(20, 10)
    refused = bench.ask(20, 20)
    assert isinstance(refused, Refused)
    assert (refused.limit, refused.wait) == ("requests", MINUTE)
    bench.now = MINUTE
    assert isinstance(bench.ask(20, 20), Granted)


def test_what_is_never_there_is_refused_for_good() -> None:
    for limits in (TenantLimits(tpm=100), TenantLimits(daily_tokens=100)):
        refused = Bench(limits).ask(50, 51)
        assert isinstance(refused, Refused)
        assert (refused.limit, refused.wait, refused.allowed, refused.asked) == ("size", None, 100, 101)
        assert isinstance(Bench(limits).ask(50, 50), Granted)


def test_requests_that_do_not_say_how_long_are_charged_what_is_usual() -> None:
    bench = Bench(TenantLimits(tpm=10_000))
    bench.ask(10, None, sequences=2)
    assert bench.remaining() == (None, 10_000 - 10 - 2 * FIRST_GUESS)
    bench.settle(10, 32, finished=2)
    bench.now += MINUTE
    for _ in range(200):
        bench.ask(0, 16)
        bench.settle(0, 16)
    bench.now += MINUTE
    bench.ask(10, None)
    assert bench.remaining() == (None, 10_000 - 10 - 17)


def test_a_guess_beyond_the_limit_is_cut_to_it() -> None:
    bench = Bench(TenantLimits(tpm=100))
    assert isinstance(bench.ask(50, None), Granted)
    assert bench.remaining() == (None, 0)
    bench.settle(50, 300)  # in debt now
    refused = bench.ask(99, None)
    assert isinstance(refused, Refused)
    assert refused.wait == MINUTE * 350 // 100
    too_long = bench.ask(100, None)
    assert isinstance(too_long, Refused)
    assert too_long.limit == "size"


def test_requests_at_the_same_time() -> None:
    bench = Bench(TenantLimits(max_concurrent=2))
    bench.ask()
    bench.ask()
    refused = bench.ask()
    assert isinstance(refused, Refused)
    assert (refused.limit, refused.wait, refused.allowed, refused.used) == ("concurrent", None, 2, 2)
    assert isinstance(bench.ask(tenant="globex"), Granted)
    bench.settle(1, 1, number=1)
    assert isinstance(bench.ask(), Granted)


def test_background_work_takes_of_the_day_and_leaves_all_other_limits_alone() -> None:
    bench = Bench(TenantLimits(rpm=1, tpm=50, max_concurrent=1, daily_tokens=1000))
    for _ in range(3):
        assert isinstance(bench.ask(200, 50, background=True), Granted)
    assert bench.remaining() == (1, 50)
    assert isinstance(bench.ask(40, 10), Granted), "what runs behind is none of the requests at the same time"
    bench.settle(250, 300, number=1)
    bench.settle(0, 0, number=2, finished=0)
    assert bench.remaining() == (0, 0)
    refused = bench.ask(100, 51, background=True)
    assert isinstance(refused, Refused)
    assert (refused.limit, refused.wait, refused.used) == ("daily", NOON, 850)
    too_long = bench.ask(1000, 1, background=True)
    assert isinstance(too_long, Refused)
    assert (too_long.limit, too_long.allowed) == ("size", 1000)
    bench.accounts.forget("a", bench.now)
    bench.now = MINUTE
    assert bench.remaining() == (1, 50)
    assert isinstance(bench.ask(100, 50, background=True), Granted)
    assert isinstance(bench.ask(25, 25), Refused), "850 and 150 are spent"


def test_a_days_tokens_come_back_at_midnight_utc_and_not_before() -> None:
    bench = Bench(TenantLimits(daily_tokens=100))
    bench.ask(40, 20)
    bench.settle(40, 10)
    refused = bench.ask(40, 11)
    assert isinstance(refused, Refused)
    assert (refused.limit, refused.wait, refused.used, refused.asked) == ("daily", NOON, 50, 51)
    assert isinstance(bench.ask(40, 10), Granted)
    bench.now = NOON - 1
    assert isinstance(bench.ask(1, 1), Refused)
    bench.now = NOON
    assert isinstance(bench.ask(50, 50), Granted)
    bench.settle(1, 0, number=3)  # charged yesterday: today's is as it was
    assert isinstance(bench.ask(1, 1), Refused)


def test_what_a_lost_front_end_reserved_stays_charged_and_runs_no_longer() -> None:
    bench = Bench(TenantLimits(tpm=100, max_concurrent=2, daily_tokens=100))
    bench.ask(10, 10, owner="gone")
    bench.ask(10, 10, owner="here")
    bench.accounts.forget("gone", bench.now)
    assert bench.remaining() == (None, 60)
    assert isinstance(bench.ask(10, 10), Granted)
    assert isinstance(bench.ask(10, 10), Refused)
    bench.settle(10, 10, number=1)
    assert bench.remaining() == (None, 40)


def test_a_limit_may_change() -> None:
    bench = Bench(TenantLimits(tpm=100))
    bench.ask(10, 10)
    bench.limits = TenantLimits(tpm=50)
    assert bench.remaining() == (None, 50)
    bench.now += MINUTE
    assert bench.remaining() == (None, 50)


def test_limits_may_come_and_go() -> None:
    bench = Bench(TenantLimits(tpm=100))
    bench.ask(10, 10)
    bench.limits = TenantLimits()
    assert bench.remaining() == (None, None)
    bench.settle(10, 0)
    bench.limits = TenantLimits(tpm=50, rpm=5)
    assert bench.remaining() == (5, 50)


class Ledgering(RuleBasedStateMachine):
    """Any order of requests, settlements, losses and waits against a plain account of what was admitted and used."""

    LIMITS = TenantLimits(rpm=20, tpm=500, max_concurrent=4, daily_tokens=4000)

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(self.LIMITS, epoch=DAY - MINUTE)
        self.open: dict[int, tuple[int, int]] = {}  # number -> estimate, day
        self.charged: list[tuple[int, int]] = []  # when, tokens
        self.spent: dict[int, int] = {}

    @property
    def day(self) -> int:
        return (self.bench.epoch + self.bench.now) // DAY

    @rule(prompt=st.integers(0, 200), most=st.integers(1, 200))
    def ask(self, prompt: int, most: int) -> None:
        answer = self.bench.ask(prompt, most)
        if isinstance(answer, Granted):
            self.open[self.bench.count] = (prompt + most, self.day)
            self.charged.append((self.bench.now, prompt + most))
            self.spent[self.day] = self.spent.get(self.day, 0) + prompt + most
        elif answer.wait is not None and answer.limit != "daily":
            assert isinstance(self._retry(prompt, most, answer.wait - 1), Refused)

    def _retry(self, prompt: int, most: int, wait: int) -> Granted | Refused:
        """The same a little later, on the same accounts: nothing of it stays if it is refused."""
        self.bench.now += wait
        return self.bench.ask(prompt, most)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        estimate, day = self.open.pop(number)
        used = data.draw(st.integers(0, estimate))
        self.bench.settle(used, 0, number=number)
        self.spent[day] += used - estimate

    @rule()
    def lose(self) -> None:
        self.bench.accounts.forget("a", self.bench.now)
        self.open.clear()

    @rule(seconds=st.integers(0, 40 * 1_000_000))
    def wait(self, seconds: int) -> None:
        self.bench.now += seconds

    @invariant()
    def never_over_the_limits(self) -> None:
        assert len(self.open) <= 4
        assert all(spent <= 4000 for spent in self.spent.values())
        for limit, charges in ((500, self.charged), (20, [(when, 1) for when, _ in self.charged])):
            for first in range(len(charges)):
                window = self.bench.now - charges[first][0]
                # At most what a full bucket holds and what flows in; what was given back is charged again by others.
                assert sum(one for _, one in charges[first:]) * MINUTE <= limit * (MINUTE + window) + self._returned() * MINUTE

    def _returned(self) -> int:
        admitted = sum(tokens for _, tokens in self.charged)
        return admitted - sum(self.spent.values())

    def teardown(self) -> None:
        for number in sorted(self.open):
            self.bench.settle(0, 0, number=number)
        self.bench.now += 2 * DAY
        granted = [self.bench.ask(1, 1) for _ in range(4)]
        assert all(isinstance(one, Granted) for one in granted), "nothing is left reserved"
        assert isinstance(self.bench.ask(1, 1), Refused)


TestLedgering = Ledgering.TestCase
TestLedgering.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("limits", [TenantLimits(), TenantLimits(max_concurrent=1)])
def test_without_a_limit_a_minute_there_is_nothing_to_tell(limits: TenantLimits) -> None:
    assert Bench(limits).remaining() == (None, None)
