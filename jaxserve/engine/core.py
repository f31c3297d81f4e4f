"""One turn of the engine: plan and submit the next step, then take in the one before it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from jaxserve.engine.activity import Activity, StepTimes
from jaxserve.engine.awaited import all_done
from jaxserve.engine.death import EngineDeath
from jaxserve.engine.pause import Pause, cut_off, stamped
from jaxserve.errors import EngineDeadError, InvalidRequestError, JaxserveError, ModelNotFoundError, brief
from jaxserve.executor.base import Executor, StepHandle
from jaxserve.metrics.turn import Arrival, Turn
from jaxserve.scheduler.request import EngineRequest, Update
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.step.plan import Plan

if TYPE_CHECKING:  # an engine that is neither watched nor dumped needs none of what does it
    from jaxserve.engine.adapters import EngineAdapters
    from jaxserve.engine.control import EngineControl
    from jaxserve.engine.kv_events.publisher import KVEventPublisher
    from jaxserve.engine.observer import EngineObserver
    from jaxserve.grammar.grammars import Grammars
    from jaxserve.record.crash import CrashDumper


ADAPTER_SECONDS = 0.02  # to wait for one before those who wait beside it are looked after again
RECENT = 1 / 16  # weight of the newest step in the average


Result = TypeVar("Result")

logger = logging.getLogger(__name__)


def _nothing() -> None:
    """Nobody watches whether it turns."""


class EngineCore:
    """Scheduler and executor, driven by one thread.

    Attributes:
        grammars: compiles those that requests bring; None to refuse them.
        observer: told of sequences and turns; None for nobody. Set it before the first turn.
        step_seconds: that a step took, averaged over recent ones; 0 before the first.
        publisher: of what the prefix cache holds; None where nobody is told.
        intact: raises when the engine must not go on; an idle engine asks now and then. None if nothing watches over it.
        pause: whether it takes and runs requests now.
        beat: told that the engine is alive by what takes long between two turns.
        control: what operators may do to it; None for nothing.
        adapters: that requests may name; None for none.
        weight_version: of the weights that steps run with; None for those that it began with, if they have no name.
        death: what it died of; None while it lives.
        settings: context of each thread that runs the engine or its calls: jax's settings, which differ from the caller's.

    Args:
        overlap: whether a step is planned and submitted while the one before it runs. A sequence that ends is then noticed one
            step late and its extra token discarded; the tokens are the same either way.
        dumper: keeps the last steps and writes them down when one fails; None to keep none.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        *,
        overlap: bool,
        dumper: CrashDumper | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self.grammars = grammars
        self.scheduler = scheduler
        self.executor = executor
        self._overlap = overlap
        self._dumper = dumper
        self._in_flight: tuple[Plan, StepHandle, float] | None = None  # with the time it was submitted
        self._collected = 0.0  # time of the latest result
        self.step_seconds = 0.0
        self._step_times = StepTimes()
        self.activity = Activity(time.monotonic())
        self._host_seconds = 0.0  # that the latest turn took besides waiting
        self._failure: BaseException | None = None
        self._failed_aside: set[str] = set()  # watchers whose failure was logged
        self.death: EngineDeath | None = None
        self.observer: EngineObserver | None = None
        self.publisher: KVEventPublisher | None = None
        self.intact: Callable[[], None] | None = None
        self._last_turn: Turn | None = None
        self._settled: list[Update] = []
        self.pause = Pause(self)
        self.weight_version: int | str | None = None
        self.control: EngineControl | None = None
        self.adapters: EngineAdapters | None = None
        self.beat: Callable[[], None] = _nothing
        self.settings: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def has_work(self) -> bool:
        if self._failure is not None:
            return False
        if self._settled or self._in_flight is not None or self.scheduler.has_ended:
            return True
        if self.pause.is_on:  # what waits for the end of what runs waits until it goes on
            return self.pause.waits and self.is_drained
        return self.pause.waits or self.scheduler.has_work

    def add(self, requests: Sequence[EngineRequest]) -> None:
        """Queue the sequences of one request; waits for its grammar, if it has one that was not prepared.

        Raises RefusedError, InvalidRequestError for a grammar that cannot be had, or EngineDeadError after a step failed.
        """
        self.check_alive()
        self.pause.require_awake()
        if requests[0].adapter:
            adapters = self.require_adapters()
            adapters.let_go(self.scheduler.sequences.values())
            requests = adapters.resolved(requests)
        wanted = requests[0].params.structured_outputs
        constraint = None if wanted is None else self._require_grammars().constraints(wanted)
        try:
            self.scheduler.add(requests, constraint)
        except JaxserveError:
            raise
        except BaseException:
            with self._fatal():  # unless it left something behind, it is this request's alone
                self.scheduler.check()
            raise
        if self.observer is not None:
            arrivals = [Arrival(one.id, one.service_class.value, len(one.prompt), one.arrival, one.tenant) for one in requests]
            with self._aside("metrics"):
                self.observer.arrived(arrivals)

    def prepare(self, requests: Sequence[EngineRequest]) -> Future[Any] | None:
        """Done when the sequences of a request can be added at once; None if they can be now. `release` must follow.

        Raises InvalidRequestError, or ModelNotFoundError for an adapter that there is not.
        """
        wanted = requests[0].params.structured_outputs
        awaited: list[Future[Any] | None] = []
        if wanted is not None:
            awaited.append(self._require_grammars().compile(wanted, requests[0].tenant))
        if requests[0].adapter:
            awaited.append(self.require_adapters().bring(requests))
        return all_done([one for one in awaited if one is not None])

    def release(self, requests: Sequence[EngineRequest]) -> None:
        """The sequences of a request that was prepared have been added, or will not be."""
        wanted = requests[0].params.structured_outputs
        if wanted is not None and self.grammars is not None:
            self.grammars.release(wanted, requests[0].tenant)

    def require_adapters(self) -> EngineAdapters:
        """Raises ModelNotFoundError where none are served."""
        if self.adapters is None:
            raise ModelNotFoundError("no adapters are served: the engine was started without enable_lora", param="model")
        return self.adapters

    def _require_grammars(self) -> Grammars:
        if self.grammars is None:
            raise InvalidRequestError("the engine has no tokenizer, which grammars need", param="structured_outputs")
        return self.grammars

    def abort(self, ids: Iterable[str]) -> list[str]:
        """End sequences now; their pages are free for the next plan. Returns those that were active."""
        aborted = self.scheduler.abort(ids)
        if self.observer is not None:
            with self._aside("metrics"):
                self.observer.aborted(aborted, self.scheduler.clock.now())
        return aborted

    def settle(self) -> None:
        """Wait for the step in flight, if there is one, and take it in; the next turn tells what it did.

        Whatever is raised ends the engine, as in `step`.
        """
        if self._in_flight is not None:
            submitted, self._in_flight = self._in_flight, None
            with self._fatal():
                self._settled += self._collect(Turn(self.scheduler.clock.now()), *submitted)

    def cut_off(self, names: Collection[str] | None = None) -> None:
        """End all sequences as aborted, or those of the requests of these names, those that wait too; the next turn tells it."""
        if names is not None and not any(one.request.name in names for one in self.scheduler.sequences.values()):
            return  # else whoever names nothing could hold up every step
        self.settle()
        self._settled += cut_off(self.scheduler, names)

    def give_up_waiting(self) -> None:
        """What ran is over, and nobody takes turns: do what waited for it."""
        if self._failure is None and self.pause.waits:
            self.settle()
            if self.is_drained:
                self.pause.drained()

    @property
    def is_drained(self) -> bool:
        """Whether nothing that runs has begun."""
        return self._in_flight is None and not self.scheduler.num_running

    def demote(self, ids: Iterable[str], *, demoted: bool) -> None:
        self.scheduler.demote(ids, demoted=demoted)

    def step(self) -> list[Update]:
        """One turn. Returns what the collected step did; empty while the first step of a busy period runs.

        Whatever is raised ends the engine: buffers may be donated and pages promised that were never written.
        """
        self.check_alive()
        with self._fatal():
            return self._turn()

    @contextmanager
    def _fatal(self) -> Iterator[None]:
        """What is raised inside ends the engine: it is written down, and whoever waits for what ran is told."""
        try:
            yield
        except BaseException as error:
            self._failure = error
            self.pause.fail(EngineDeadError(f"the engine died: {brief(error)}"))
            dump = self._dumper.dump(error) if self._dumper is not None and isinstance(error, Exception) else None
            self.death = EngineDeath(brief(error), time.time(), None if dump is None else str(dump))
            raise

    def begin(self, expected: float | None) -> None:
        """Report to the watchers that work begins now, with its expected seconds; None if they are unknown."""
        self.activity = Activity(time.monotonic(), expected)

    @contextmanager
    def _expecting(self, seconds: float | None) -> Iterator[None]:
        """Report the expected seconds of the work inside, and afterwards the expectation from before."""
        before = self.activity.expected
        self.begin(seconds)
        yield
        self.begin(before)

    @contextmanager
    def _aside(self, what: str) -> Iterator[None]:
        """For what watches the engine: its failure is logged once, and the engine works on."""
        try:
            yield
        except Exception:
            if what not in self._failed_aside:
                self._failed_aside.add(what)
                logger.exception("%s failed; later failures of it are not logged", what)

    def beating(self, steps: Iterable[Result]) -> Iterator[Result]:
        """The same, and at each it is told that the engine turns: for what takes long between two turns."""
        for one in steps:
            self.beat()
            yield one

    def expire(self) -> None:
        """End what has waited for too long; for an engine that takes no turns."""
        self.scheduler.expire()

    def check_alive(self) -> None:
        """Raise EngineDeadError after a step failed."""
        if self._failure is not None:
            raise EngineDeadError(f"the engine died: {brief(self._failure)}")

    def emitted(self) -> None:
        """What the last `step` returned is on its way: the turn is over, and those are told of it who watch."""
        self.tell()
        turn, observer = self._last_turn, self.observer
        if observer is None or turn is None:
            return
        scheduler = self.scheduler
        turn.running, turn.waiting = scheduler.num_running, scheduler.num_waiting
        turn.pages_free, turn.preemptions = scheduler.cache.num_free, scheduler.num_preemptions
        turn.counts = scheduler.counts()
        turn.idle = not self.has_work
        turn.ended = scheduler.clock.now()
        with self._aside("metrics"):
            observer.turned(turn)

    def tell(self) -> None:
        """Those who follow the prefix cache hear what changed; for what changes it between two turns."""
        with self._aside("KV events"):
            self.scheduler.cache.prefixes.tell()

    def close(self) -> None:
        """It does nothing any more, and nobody is told of it."""
        self.pause.fail(EngineDeadError("the engine has ended"))
        if self.grammars is not None:
            self.grammars.close()
        if self.publisher is not None:
            self.scheduler.cache.prefixes.unfollow(self.publisher.take)
            self.publisher.close()
            self.publisher = None

    def _turn(self) -> list[Update]:
        clock = self.scheduler.clock
        self._last_turn = turn = Turn(clock.now())
        updates, self._settled = self._settled, []
        if self._in_flight is not None and self.scheduler.awaits_tokens(self._host_seconds):
            turn.collected_first = True
            updates += self._collect(turn, *self._in_flight)
            turn.applied = clock.now()
            self._in_flight = None
        begins = clock.now()
        if self.pause.is_on:
            self.scheduler.expire()
        plan = None if self.pause.is_on else self.scheduler.schedule()
        turn.planned = turn.launched = clock.now()
        submitted = None
        if plan is not None:
            if self._dumper is not None:
                with self._aside("the flight recorder"):
                    self._dumper.ring.planned(plan, self.scheduler.sequences)
            with self._expecting(None):  # it returns at once, unless it compiles
                handle = self.executor.submit(plan)
            turn.launched = clock.now()
            turn.step, turn.rows, turn.tokens = plan.step, plan.num_rows, plan.num_tokens
            turn.drafts, turn.prefill_tokens = int(plan.num_drafts.sum()), self.scheduler.view.prefill_tokens(plan.step)
            submitted = (plan, handle, turn.launched)
        updates += self.scheduler.take_ended()  # after the step was submitted: sequences that failed are still in its plan
        if self._overlap:
            submitted, self._in_flight = self._in_flight, submitted
        elif submitted is not None:
            self._choose(*submitted[:2])
        if submitted is not None:
            updates += self._collect(turn, *submitted)
        if self._in_flight is not None:
            self._choose(*self._in_flight[:2])
        if self.pause.waits and self.is_drained:
            self.pause.drained()
        if submitted is None and self._in_flight is None and self.adapters is not None:
            self.adapters.store.wait(ADAPTER_SECONDS)
        if not turn.collected_first:
            turn.applied = clock.now()
            turn.waited = turn.waited or turn.applied
        self._host_seconds = turn.launched - begins + turn.applied - turn.waited
        if self.observer is not None:
            with self._aside("metrics"):
                self.observer.updated(updates, max(turn.applied, turn.launched))
        return updates

    def _choose(self, plan: Plan, handle: StepHandle) -> None:
        """Tell a step what its rows may choose: what the step before it gave is known by now."""
        masks = self.scheduler.masks(plan)
        if masks is not None:
            if self._dumper is not None:
                with self._aside("the flight recorder"):
                    self._dumper.ring.masked(plan, masks)
            handle.choose(masks)

    def _collect(self, turn: Turn, plan: Plan, handle: StepHandle, launched: float) -> list[Update]:
        with self._expecting(self._step_times.expected(plan)):
            result = handle.result()
        turn.waited = self.scheduler.clock.now()
        turn.collected, turn.step_began = plan.step, max(launched, self._collected)  # a step begins when the last is over
        turn.accepted = result.num_accepted(plan)
        self._collected = turn.waited
        seconds = turn.waited - turn.step_began
        self._step_times.took(plan, seconds)
        self.step_seconds += (seconds - self.step_seconds) * (RECENT if self.step_seconds else 1.0)
        if self._dumper is not None:
            with self._aside("the flight recorder"):
                self._dumper.ring.collected(plan, result, seconds)
        return stamped(self.scheduler.apply(plan, result, seconds), self.weight_version)
