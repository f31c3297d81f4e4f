"""An engine core whose every promise is checked at every step, for runs of random operations.

Tokens can be worked out by hand (`expected`), pages are followed through plans (`PageContents`), and time is virtual:
a step takes what the setup says, so that deadlines, paces and rates act.
"""

import itertools
import math
from collections.abc import Set
from dataclasses import replace

from jaxserve.cache.state_pool import StatePool
from jaxserve.cache.swap import SwapSpace
from jaxserve.clock import VirtualClock
from jaxserve.engine.budgets import Budgets
from jaxserve.engine.core import EngineCore
from jaxserve.errors import DeadlineError, InternalError, InvalidRequestError, OverloadedError, QueueFullError, RefusedError
from jaxserve.scheduler.preemption import Preemption
from jaxserve.scheduler.request import RANKS, EngineRequest, Status, Update
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.step.plan import MoveKind, Plan
from jaxserve.types import FinishReason, RequestOptions, ServiceClass
from tests.support.page_contents import PageContents
from tests.support.plans import moved
from tests.support.scripted_grammars import ScriptedGrammars
from tests.support.watched_parts import (
    EOS,
    MAX_LEN,
    Setup,
    TimedExecutor,
    WatchedCache,
    Wish,
    cache_root,
    is_complete,
    is_poisoned,
    oracle,
    requests_of,
    scores_of,
)

MAX_STEPS = 4000
MAX_IDLE = 4  # steps in a row that may compute nothing while there is work


class CheckedEngine:
    """One engine core. Every operation asserts what must hold before and after it."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.clock = VirtualClock()
        num_usable = setup.num_pages - 1
        self.cache = WatchedCache(
            setup.num_pages,
            setup.page_size,
            prefix_caching=setup.prefix_caching,
            quota=lambda tenant: int(setup.policies.of_tenant(tenant).kv_share * num_usable),
            windows=setup.windows,
            max_chunk=setup.config.max_num_batched_tokens,
            states=None if setup.states is None else StatePool(setup.states),
        )
        self.swap = SwapSpace(setup.swap_slots, setup.swap_page_seconds) if setup.swap_slots else None
        self.scheduler = Scheduler(
            setup.config,
            self.cache,
            MAX_LEN,
            self.clock,
            policies=setup.policies,
            swap=self.swap,
            on_preemption=self._preempted,
            masker=ScriptedGrammars(),
        )
        self.executor = TimedExecutor(setup, self.clock, self._planned)
        self.core = EngineCore(
            self.scheduler,
            self.executor,
            overlap=setup.config.overlap,
            grammars=ScriptedGrammars(),  # type: ignore[arg-type]  # compiles nothing
        )
        self.contents = PageContents(setup.page_size, setup.windows)
        self.budgets = Budgets(
            setup.policies,
            ServiceClass.BATCH,
            num_pages=num_usable,
            page_size=setup.page_size,
            windows=setup.windows,
            max_chunk=setup.config.max_num_batched_tokens,
        )
        self.requests: dict[str, EngineRequest] = {}
        self.wanted: dict[str, list[int]] = {}  # outputs of all requests that were taken
        self.got: dict[str, list[int]] = {}  # of those that are active
        self.scores: dict[str, list[int]] = {}  # of their prompts
        self.started: set[str] = set()  # names of requests, of which any sequence ran
        self.waiting: set[str] = set()  # before the step
        self.computed: dict[str, int] = {}  # tokens in the cache, as of the latest plan
        self.events: list[Preemption] = []
        self.names = itertools.count()
        self.num_known = 0  # preemptions before the step
        self.planned = True  # whether the step before had a plan
        self.idle = 0  # steps in a row that did nothing
        self.num_operations = 0
        self.most_pinned = 0
        self.displaced: set[str] = set()  # and not told of yet
        self.received = self.finished = self.aborted = self.refused = self.failed = 0

    def add(self, wish: Wish) -> None:
        """A request arrives; it is taken, or refused with a time to come back."""
        requests = requests_of(wish, str(next(self.names)), self.clock.now(), self.budgets)
        if not requests:
            return
        output = oracle(requests[0], self.setup.windows)
        if self._take_in(requests):
            for one in requests:
                self.requests[one.id], self.wanted[one.id], self.got[one.id] = one, output, []
                self.scores[one.id] = []
        self.check()

    def move(self, name: str) -> None:
        """What is left of an active sequence's request leaves its engine, and another one, which is this one, takes it in."""
        group = [one for one in self.got if _request_of(one) == _request_of(name)]
        begun = _request_of(name) in self.started
        got = {one: self.got.pop(one) for one in group}
        assert self.core.abort(group) == group
        self.aborted += len(group)
        requests = []
        for place, one in enumerate(group):
            before = self.requests[one]
            requests.append(
                replace(
                    before,
                    parent=group[0] if place else None,
                    queue_deadline=math.inf if begun else before.queue_deadline,
                    output=tuple(got[one]),
                    num_readings=len(self.scores[one]),
                    resumed=True,
                )
            )
        if self._take_in(requests):
            self.requests.update((one.id, one) for one in requests)
            self.got.update(got)
        self.check()

    def _take_in(self, requests: list[EngineRequest]) -> bool:
        """The sequences of a request arrive; whether they are taken."""
        queue = [one for one in self.scheduler.sequences.values() if one.status is Status.WAITING]
        tokens = sum(len(one.tokens) for one in queue) + sum(len(one.prompt) + len(one.output) for one in requests)
        config = self.setup.config
        full = len(queue) + len(requests) > config.max_waiting or (tokens > config.max_waiting_tokens and bool(queue))
        tenant = requests[0].tenant
        self.received += len(requests)
        try:
            self.core.add(requests)
        except QueueFullError as error:
            assert full
            self._displaced(tenant)
            self._refused(requests, error)
        except OverloadedError as error:
            assert self._displaced(tenant) or not full
            assert requests[0].queue_deadline < math.inf
            self._refused(requests, error)
        else:
            assert bool(self._displaced(tenant, {one.id for one in requests})) == full
            return True
        return False

    def abort(self, name: str) -> None:
        """An active sequence is aborted, wherever it is; a second time does nothing."""
        assert self.core.abort([name]) == [name]
        assert self.core.abort([name]) == []
        del self.got[name]
        self.aborted += 1
        self.check()

    def demote(self, name: str, *, demoted: bool) -> None:
        """A sequence gives way from now on, or no longer; a second time does nothing."""
        for _ in range(2):
            self.core.demote([name, "unknown"], demoted=demoted)
            sequence = self.scheduler.sequences[name]
            assert sequence.batch == (demoted or sequence.request.service_class is ServiceClass.BATCH)
            self.check()

    def wait(self, seconds: float) -> None:
        """Nothing happens for a while."""
        self.clock.advance(seconds)
        self.num_operations += 1

    def pin(self, tenant: str, tokens: tuple[int, ...]) -> None:
        """Pin what is cached of a prompt, or be told that this is too much."""
        before = self.cache.num_pinned
        try:
            self.cache.pin(cache_root(RequestOptions(tenant=tenant)), tokens, tenant)
        except InvalidRequestError:
            assert self.cache.num_pinned == before
        self.check()

    def flush(self) -> None:
        """Forget all that is cached, pins as well."""
        self.cache.flush()
        assert self.cache.num_pinned == 0
        self.check()

    def step(self) -> None:
        """One turn of the engine; what it tells is what it should."""
        now = self.clock.now()
        due = {name for name in self.got if self._is_due(self.requests[name], now)}
        late = {name for name in self.got if self.requests[name].queue_deadline <= now and name not in self.computed}
        self.waiting = {name for name, one in self.scheduler.sequences.items() if one.status is Status.WAITING}
        num_plans = len(self.executor.plans)
        self.num_known = self.scheduler.num_preemptions
        failed = set()
        updates = self.core.step()
        for update in updates:
            assert update.id in self.got or update.id in self.displaced, "a sequence that ended is told of again"
            if update.id in self.displaced:
                self._told_of_displacement(update)
            elif isinstance(update.error, DeadlineError):
                failed.add(update.id)
                self._end_late(update, now)
            else:
                self._take(update)
        assert due <= failed, "a deadline passed unnoticed"
        assert failed <= due | late, "a deadline was not due"  # whose first siblings started and ended may start late, or not
        self.planned = len(self.executor.plans) > num_plans
        self.idle = 0 if self.planned or updates or not self.core.has_work else self.idle + 1
        assert self.idle <= MAX_IDLE, "there is work and nothing is done"
        assert len(self.events) == self.scheduler.num_preemptions
        assert sum(event.tokens_lost for event in self.events) == self.scheduler.num_lost_tokens
        self.check()

    def finish(self) -> None:
        """Everything comes to an end, and everything is given back."""
        for _ in range(MAX_STEPS):
            if not self.core.has_work:
                break
            self.step()
        assert not self.core.has_work, "the engine makes no progress"
        assert not self.got
        self.cache.unpin_all()
        assert self.cache.num_free == self.cache.num_usable
        assert self.swap is None or self.swap.num_free == self.setup.swap_slots

    def check(self) -> None:
        """The invariants that hold between any two operations."""
        self.num_operations += 1
        self.scheduler.check()
        assert self.scheduler.sequences.keys() == self.got.keys()
        assert self.received == self.finished + self.aborted + self.refused + self.failed + len(self.got)
        running: dict[str, int] = {}
        for one in self.scheduler.sequences.values():
            if one.status is Status.RUNNING:
                running[one.request.tenant] = running.get(one.request.tenant, 0) + 1
        crowded = [tenant for tenant, count in running.items() if count > 1]  # one alone may run beside pins
        # Pages that were pinned count for the tenants that hold them once a flush has dropped the pins.
        self.most_pinned = max(self.most_pinned if crowded else 0, self.cache.num_pinned)
        for tenant in crowded:
            cap = self.setup.policies.of_tenant(tenant).kv_cap * self.cache.num_usable
            assert self.cache.tenant_pages(tenant) <= cap + self.most_pinned, f"{tenant} is beyond its cap"

    def _planned(self, plan: Plan) -> None:
        """A plan on its way to the executor."""
        config, now = self.setup.config, self.clock.now()
        assert plan.num_tokens <= config.max_num_batched_tokens, "more tokens than a step may have"
        assert plan.num_rows <= config.max_num_seqs
        admitted = self.waiting.intersection(plan.ids)
        if self.scheduler.num_preemptions > self.num_known:
            assert not admitted, "a sequence is admitted in a step that preempted"
            assert not moved(plan, MoveKind.FROM_TIER)
        else:
            swapped_out = moved(plan, MoveKind.TO_TIER)
            assert not swapped_out or not self.planned, "pages go out that nobody gave now, nor in a step without a plan"
        texts = []
        for row, name in enumerate(plan.ids):
            request = self.requests[name]
            assert now < request.deadline, "a sequence runs too late"
            if name in admitted and _request_of(name) not in self.started:
                assert now < request.queue_deadline, "a sequence starts too late"
            start = int(plan.kv_length[row] - (plan.query_start[row + 1] - plan.query_start[row]))
            assert name in admitted or start == self.computed[name], "a token is computed twice, or never"
            self.computed[name] = int(plan.kv_length[row])
            last = (
                0 if is_poisoned(request, self.setup.windows) else None
            )  # what a row without valid logits goes on with, until it is ended
            texts.append((request.tenant, (*request.prompt, *(self.wanted[name] if last is None else (last,)))))
        self.started.update(map(_request_of, plan.ids))
        self.contents.run(plan, texts)

    def _preempted(self, event: Preemption) -> None:
        """A sequence gave way, as `Preemption` says, to one that comes before it."""
        self.events.append(event)
        victim = self.scheduler.sequences[event.id]
        assert event.id not in self.waiting, "a sequence is admitted and preempted in one step"
        assert (event.tenant, event.service_class) == (victim.request.tenant, victim.service_class)
        assert event.time == self.clock.now()
        assert event.pages_gained == self.cache.freed, "a preemption frees other pages than it tells"
        assert event.swapped == bool(victim.swap_slots)
        assert event.tokens_lost == (0 if event.swapped else self.computed[event.id])
        rank = max(0, RANKS[event.service_class] - (victim.num_preemptions - 1) // 2)
        others = [one for one in self.scheduler.sequences.values() if one is not victim]
        before = any(one.status is Status.RUNNING and one.precedence < (rank, victim.order) for one in others)
        interactive = any(one.status is Status.WAITING and not one.batch for one in others)
        assert before or (interactive and rank == RANKS[ServiceClass.BATCH]), "the first of all is preempted"

    def _take(self, update: Update) -> None:
        """A token, scores of its prompt, or an error of the sequence's own."""
        name, wanted = update.id, self.wanted[update.id]
        if update.prompt_logprobs is not None:
            self.scores[name] += update.prompt_logprobs.rows.rank.tolist()
            if update.token is None and update.finish_reason is None:
                assert update.error is None
                return
        if is_poisoned(self.requests[name], self.setup.windows):
            assert isinstance(update.error, InternalError)
            assert update.token is None
            self.failed += 1
            del self.got[name]
            return
        assert update.error is None
        assert self.scores[name] == scores_of(self.requests[name], self.setup.windows), "what was to be scored was not, or twice"
        if self.requests[name].task == "score":
            assert (update.token, update.finish_reason) == (None, FinishReason.LENGTH)
            self.finished += 1
            del self.got[name]
            return
        if update.token is not None:
            self.got[name].append(update.token)
        assert self.got[name] == wanted[: len(self.got[name])]
        stopped = wanted[-1] in EOS and not self.requests[name].params.ignore_eos
        complete = not stopped and is_complete(self.requests[name], wanted)
        done = len(self.got[name]) == len(wanted) and complete == (update.token is None)
        assert (update.finish_reason is not None) == done
        if done:
            stopped |= complete
            assert update.finish_reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)
            self.finished += 1
            del self.got[name]

    def _end_late(self, update: Update, now: float) -> None:
        """A deadline passed."""
        request = self.requests[update.id]
        assert update.token is None
        if request.deadline > now:  # it may come again, and is told when
            assert update.error is not None
            assert update.error.retry_after is not None
            assert update.error.retry_after >= 1.0
        self.failed += 1
        del self.got[update.id]

    def _displaced(self, tenant: str, added: Set[str] = frozenset()) -> Set[str]:
        """Sequences of other tenants that lost their place in a full queue; `added` are the new ones."""
        gone = self.got.keys() - self.scheduler.sequences.keys() - added
        for name in gone:
            assert self.requests[name].tenant != tenant, "a tenant displaced its own"
            assert _request_of(name) not in self.started, "what had started was displaced"
            assert not self.requests[name].resumed, "what another engine had taken in was displaced"
            del self.got[name]
        self.displaced |= gone
        self.failed += len(gone)
        return gone

    def _told_of_displacement(self, update: Update) -> None:
        assert isinstance(update.error, OverloadedError)
        assert update.error.retry_after is not None
        assert update.error.retry_after >= 1.0
        self.displaced.remove(update.id)

    def _refused(self, requests: list[EngineRequest], error: RefusedError) -> None:
        assert error.retry_after is not None
        assert error.retry_after >= 1.0
        self.refused += len(requests)

    def _is_due(self, request: EngineRequest, now: float) -> bool:
        late = request.queue_deadline <= now and _request_of(request.id) not in self.started
        return late or request.deadline <= now


def _request_of(name: str) -> str:
    return name.partition("/")[0]
