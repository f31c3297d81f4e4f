"""The scheduler: one rule, no prefill phase and no decode phase.

Every sequence's `num_computed` chases its `num_tokens` under one token budget a step. Running sequences come first, then waiting
ones; a prefix hit starts a sequence ahead; a long prompt takes several steps beside the others' decodes; when pages run out
sequences of least precedence give theirs back and go on later, and nothing is admitted in such a step.
(The unified token budget follows vLLM's v1 scheduler and Sarathi-Serve, https://arxiv.org/abs/2403.02310.)

This is the life of sequences: they arrive, get tokens, end. `batching` chooses what each step computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as ListOf

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.swap import SwapSpace
from jaxserve.clock import Clock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.policies import Policies
from jaxserve.errors import InternalError, InvalidRequestError, JaxserveError, OverloadedError, is_containable
from jaxserve.metrics.turn import SchedulerCounts
from jaxserve.sampling.options import STANDARD, RowOptions
from jaxserve.scheduler.adapters import AdapterTable
from jaxserve.scheduler.admission import Deadlines, QueueBounds, late_end, late_start
from jaxserve.scheduler.batching import Batcher
from jaxserve.scheduler.choice import StepChoice
from jaxserve.scheduler.constraints import Masker, StepMasks, behind
from jaxserve.scheduler.containment import Containment
from jaxserve.scheduler.device_drafting import drafting_of
from jaxserve.scheduler.estimates import OutputLengths, SharedPrefixes
from jaxserve.scheduler.fairness import TokenWork
from jaxserve.scheduler.load_shedding import LoadShedding
from jaxserve.scheduler.planner import Planner
from jaxserve.scheduler.policy import DEFAULT_POLICY, Policy
from jaxserve.scheduler.preemption import Preempter, Preemption, log_preemption
from jaxserve.scheduler.request import Constraint, EngineRequest, PackedLogprobs, PackedVectors, Sequence, Status, Update
from jaxserve.scheduler.running import Footprint, OnStop, RunningSet, tell_nobody
from jaxserve.scheduler.step_budget import StepBudget
from jaxserve.scheduler.view import SchedulerView
from jaxserve.scheduler.waiting import WaitingQueue
from jaxserve.speculation.device import DeviceGuesses
from jaxserve.speculation.speculation import Speculation
from jaxserve.step.plan import Ints, Plan, Reading, StepResult
from jaxserve.step.rows import RowTable
from jaxserve.step.tasks import TASKS, Task
from jaxserve.types import FinishReason, ServiceClass

NOT_FINITE = "the model's logits are not finite"


class Scheduler:
    """Owns every sequence and the page pool; called by one thread.

    Attributes:
        lengths: output lengths expected, and how well they were met.
        gate: refuses requests in an overload, for whoever brings them from another thread.
        promises: what interactive requests were promised, and whether it was kept.
        batcher: chooses what each step computes.
        view: tells how all this stands.

    Args:
        max_model_len: longest prompt plus output, tokens.
        policies: what classes and tenants may take; no limits by default.
        swap: where preempted pages can wait; None if they are always computed again.
        on_preemption: told of every preemption.
        on_stop: as in RunningSet.
        step_sizes: tokens that steps with prompts are computed as, ascending; powers of two by default.
        row_options: what the words of a row are.
        speculation: guesses tokens that rows verify; None for none.
        tasks: what requests may want, by name.
        policy: how it chooses where it may.
        masker: makes the masks of sequences that are constrained; None if there are none.
        adapters: where those of sequences are; None if none has any.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCache,
        max_model_len: int,
        clock: Clock,
        *,
        policies: Policies | None = None,
        swap: SwapSpace | None = None,
        on_preemption: Callable[[Preemption], None] = log_preemption,
        on_stop: OnStop = tell_nobody,
        step_sizes: ListOf[int] = (),
        row_options: RowOptions = STANDARD,
        speculation: Speculation | DeviceGuesses | None = None,
        tasks: Mapping[str, Task] = TASKS,
        policy: Policy = DEFAULT_POLICY,
        masker: Masker | None = None,
        adapters: AdapterTable | None = None,
    ) -> None:
        policies = policies or Policies()
        self.cache, self.clock = cache, clock
        self.lengths, self._prefixes = OutputLengths(), SharedPrefixes(cache)
        self._config, self._tasks = config, tasks
        self._containment = Containment()
        self._masks, self._max_model_len = StepMasks(masker, clock, self._containment), max_model_len
        self._rows = RowTable(config.max_num_seqs, cache.pages_for(max_model_len), row_options)
        footprint = Footprint(config.max_num_seqs)
        self._planner = Planner(self._rows, footprint, cache, self._containment)
        self._work = TokenWork(policies, config.prefill_price, config.decode_price)
        self._step_budget = StepBudget(config.max_num_batched_tokens, config.max_num_seqs, config.itl_target, step_sizes)
        self._waiting = WaitingQueue(self._work, config.aging_s, policy)
        self._shedding = LoadShedding(config.ttft_target, config.itl_target, self._waiting, self._work, self.lengths)
        self._bounds = QueueBounds(config, self._waiting, self._shedding)
        self.gate, self.promises = self._shedding.gate, self._shedding.promises
        told = on_stop if adapters is None else adapters.before(on_stop)
        self._running = RunningSet(cache, self._rows, footprint, swap, told)
        self._preempter = Preempter(
            clock,
            policies,
            self._running,
            self._waiting,
            swap,
            self._step_budget,
            int(cache.num_usable * config.high_watermark),
            self._work_again,
            on_preemption,
            policy,
        )
        self._drafting = drafting_of(speculation, self._running, config.max_num_seqs, self._containment)
        self.batcher = Batcher(
            config,
            policies,
            clock,
            self._running,
            self._waiting,
            self._work,
            self.lengths,
            self._step_budget,
            self._preempter,
            self._started,
            self._drafting,
            policy,
            adapters,
        )
        self._sequences: dict[str, Sequence] = {}
        self._starts, self._ends = Deadlines(), Deadlines()
        self._in_flight: dict[int, StepChoice] = {}  # by the number of its plan
        self._ended: list[Update] = []
        parts = self._running, self._waiting, self._preempter, self._step_budget, self.promises, self._in_flight
        self.view = SchedulerView(config, cache, swap, *parts)

    @property
    def num_running(self) -> int:
        """Sequences that hold pages."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue, preempted ones included."""
        return len(self._waiting)

    @property
    def num_preemptions(self) -> int:
        return self._preempter.num_preemptions

    @property
    def num_lost_tokens(self) -> int:
        """Computed tokens given up by preemptions; the prefix cache may still hold some."""
        return self._preempter.num_lost_tokens

    def counts(self) -> SchedulerCounts:
        shedding = self._shedding
        learned = self._step_budget.num_raised, shedding.estimate.num_wrong, shedding.overload.num_begun
        masked = self._masks.num_rows, self._masks.seconds, self._masks.num_forced
        return self._drafting.counted(SchedulerCounts(*learned, *masked, self.batcher.num_adapter_loads))

    @property
    def has_work(self) -> bool:
        """Whether any sequence is unfinished, or its end not told."""
        return bool(self._sequences) or self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether sequences ended outside of a step, and nobody was told."""
        return bool(self._ended) or self._containment.pending

    @property
    def sequences(self) -> Mapping[str, Sequence]:
        """Every unfinished sequence by id."""
        return self._sequences

    def has_room(self, requests: ListOf[EngineRequest]) -> bool:
        """Whether the waiting queue takes these sequences too."""
        return self._bounds.has_room(requests)

    def add(self, requests: ListOf[EngineRequest], constraint: Callable[[], Constraint] | None = None) -> None:
        """Queue the sequences of one request, all or none; those with a `parent` among them wait for its prompt to share it.

        Each gets a `constraint` of its own, if there is one. Those that another engine had begun wait in front, as if preempted.

        Into a full queue a tenant comes at the cost of one that has more in it: the newest of those are told to come back.
        Raises QueueFullError or OverloadedError, with the seconds after which it may be taken.
        """
        now, first = self.clock.now(), requests[0]
        self._shedding.came(first)
        self._displace(requests)
        self._bounds.check(requests, now)
        overloaded, wait = self._shedding.overload.is_on, self._bounds.uncorrected(first)
        late = not first.may_be_shed and self._bounds.yields(first)
        sequences = {request.id: self._sequence(request) for request in requests}
        for sequence in sequences.values():
            if constraint is not None:
                sequence.constraint = behind(constraint(), sequence.request.output)
            sequence.options = self._rows.pack(sequence.row_source)
        try:
            for sequence in sequences.values():
                sequence.queued_wait, sequence.late = wait, late
                self._enter(sequence, sequences.get(sequence.request.parent or ""))
        except BaseException:  # all or none
            for sequence in sequences.values():
                if sequence.request.id in self._sequences:
                    self._leave(sequence)
            raise
        for sequence in sequences.values():
            if sequence.parent is None:
                self._waiting.append(sequence, before_late=overloaded and not late)

    def _enter(self, sequence: Sequence, parent: Sequence | None) -> None:
        """Count a sequence in. If this raises, nothing was counted."""
        sequence.parent = parent
        if parent is not None:
            sequence.prefix_hashes = parent.prefix_hashes[: sequence.num_prompt // self.cache.page_size]
        shared = self._prefixes.enter(sequence)
        try:
            sequence.queued_work = 0.0 if sequence.late else self._expected_work(sequence, shared)
        except BaseException:
            self._prefixes.leave(sequence)
            raise
        if parent is not None:
            parent.siblings.append(sequence)
        self._sequences[sequence.request.id] = sequence
        self._work.enter(sequence.request.tenant)
        self._starts.add(sequence.request.queue_deadline, sequence)
        self._ends.add(sequence.request.deadline, sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Count a sequence out that holds no pages and does not wait."""
        sequence.status = Status.FINISHED
        sequence.constraint = None  # the last steps' record keeps the sequence, and its grammar may take megabytes
        del self._sequences[sequence.request.id]
        self._work.leave(sequence.request.tenant)
        self._prefixes.leave(sequence)

    def abort(self, ids: Iterable[str]) -> list[str]:
        """Finish sequences wherever they are; unknown and finished ones are passed over. Returns those that were active."""
        aborted = []
        for name in ids:
            if (sequence := self._sequences.get(name)) is not None:
                self._finish(sequence)
                aborted.append(name)
        return aborted

    def demote(self, ids: Iterable[str], *, demoted: bool) -> None:
        """Let sequences give way as the batch class does, or take their own class again; unknown ones are passed over."""
        for name in ids:
            if (sequence := self._sequences.get(name)) is None:
                continue
            service_class = ServiceClass.BATCH if demoted else sequence.request.service_class
            if service_class is sequence.service_class:
                continue
            (self._running if sequence.status is Status.RUNNING else self._waiting).set_class(sequence, service_class)

    def awaits_tokens(self, host_seconds: float) -> bool:
        """Whether the next step is better planned when the tokens of the one in flight are known: to have drafts behind them.

        `host_seconds` is what the device then waits for.
        """
        return self._drafting.pays(host_seconds)

    def schedule(self) -> Plan | None:
        """Plan the next step; None if there is nothing to compute."""
        self.expire()
        self._shedding.look(self.clock.now())
        choice = self.batcher.step()
        self._ended += [self._fail(sequence, error) for sequence, error in choice.failed]
        if not choice.rows:
            return None
        guesses = self._drafting.plan_guesses(choice, self.batcher.room_for_drafts)
        plan = self._planner.plan(choice.rows, self._running.take_moves(), guesses, choice.adapter_loads)
        choice.masked = self._masks.rows(plan, choice.rows)
        self._in_flight[plan.step] = choice
        return plan

    def masks(self, plan: Plan) -> Ints | None:
        """What the rows of a step may choose, once the step before it was applied: see `StepHandle.choose`. None if anything.

        Sequences that may choose nothing end.
        """
        choice = self._in_flight[plan.step]
        if not choice.masked:
            return None
        masks, failed, choice.dead_ends = self._masks.make(plan, choice.masked)
        self._ended += [self._fail(sequence, error) for sequence, error in failed]
        self._end_failed()
        return masks

    def take_ended(self) -> list[Update]:
        """Sequences that ended outside of a step since the last call: deadlines passed, or they failed while it was planned."""
        self._end_failed()
        ended, self._ended = self._ended, []
        return ended

    def apply(self, plan: Plan, result: StepResult, seconds: float | None = None) -> list[Update]:
        """Take in a step's tokens: append them, finish what ends, and tell what happened, row after row.

        Args:
            plan: the step.
            result: what it produced.
            seconds: how long it took; None if nobody measured it.
        """
        choice = self._in_flight.pop(plan.step)
        if seconds is not None:
            self._observe(plan, seconds, choice)
        updates = []
        readings = {readout.row: reading for readout, reading in zip(plan.readouts, result.readings, strict=True)}
        packed = None if result.logprobs is None else PackedLogprobs.of(result.logprobs)
        samples = plan.samples.tolist()
        width = result.tokens.shape[1]
        tokens = result.tokens.reshape(-1).tolist()
        for row, (sequence, _) in enumerate(choice.rows):
            if sequence.status is Status.FINISHED:  # while the step was in flight: its token is discarded
                continue
            reading = readings.get(row) if readings else None
            try:
                if samples[row]:
                    logprobs = packed if sequence.request.params.logprobs is not None else None
                    if width == 1:
                        updates.append(self._take_token(sequence, tokens[row], row, logprobs, reading))
                    else:
                        count = int(result.num_tokens[row])
                        self._drafting.verified(sequence, int(plan.num_drafts[row]), count)
                        most, error = choice.dead_ends.get(row, (count, None))
                        places = range(row * width, row * width + min(count, most))
                        updates.extend(self._take_tokens(sequence, tokens, places, logprobs, reading))
                        if error is not None and count > most:
                            updates.append(self._fail(sequence, error))
                    if sequence.constraint is not None:
                        updates.extend(self._follow(sequence))
                elif reading is not None or not sequence.task.generates:
                    last = int(plan.kv_length[row]) == sequence.num_prompt
                    updates.extend(self._take_reading(sequence, reading or Reading(), last=last))
            except BaseException as failure:
                if not is_containable(failure):
                    raise
                self._containment.fail(sequence, failure, "reading its result")
        self._end_failed(updates)
        return updates

    def check(self) -> None:
        unfinished = list(self._sequences.values())
        running, waiting = set(self._running.sequences), set(self._waiting)
        held = [sibling for sequence in unfinished for sibling in sequence.siblings]
        assert len(running) + len(waiting) + len(held) == len(unfinished), "a sequence is nowhere, or in two places"
        for sequence in unfinished:
            assert (sequence in waiting or sequence in held) == (sequence.status is Status.WAITING)
        self._waiting.check(held)
        self._running.check(unfinished, self._config.max_num_seqs)
        self._prefixes.check(unfinished)

    def _sequence(self, request: EngineRequest) -> Sequence:
        if (task := self._tasks.get(request.task)) is None:
            raise InvalidRequestError(f"there is no task {request.task!r}", param="task")
        return Sequence.from_request(request, self._max_model_len, task)

    def _expected_work(self, sequence: Sequence, shared: int) -> float:
        """Token-work that is left to do for a sequence that waits, its siblings' held behind it not counted.

        `shared` of its tokens need not be computed for it.
        """
        prompt = 0 if sequence.swap_slots else len(sequence.tokens) - shared
        return self._work.work(prompt, self.lengths.remaining(sequence.request, sequence.num_output))

    def _work_again(self, sequence: Sequence) -> float:
        return self._expected_work(sequence, self._running.match(sequence, fork=False).num_tokens)

    def _started(self, sequence: Sequence) -> None:
        self._shedding.started(sequence, self.clock.now())

    def _observe(self, plan: Plan, seconds: float, choice: StepChoice) -> None:
        """Learn what a step costs, and how fast work is done by steps that have no room for more."""
        held = {"rows_held": choice.rows_held, "tokens_held": choice.tokens_held}
        self._step_budget.observe(plan.num_rows, plan.num_tokens, seconds, allowed=choice.allowed, **held)
        if not choice.prefill_tokens:
            self._drafting.observe(plan.num_rows, plan.num_tokens, seconds)
        if choice.full:
            work = self._work.work(choice.prefill_tokens, plan.num_tokens - choice.prefill_tokens)
            self._shedding.estimate.observe(work, seconds)

    def _take_token(
        self, sequence: Sequence, token: int, row: int, logprobs: PackedLogprobs | None, reading: Reading | None
    ) -> Update:
        """One of a row's tokens, in one of the result's. What is raised ends this sequence alone: see `apply`."""
        if token < 0:
            raise InternalError(NOT_FINITE)
        reason, matched = self._append(sequence, token)
        own = None if logprobs is None else logprobs.row(row)
        read = None if reading is None or reading.logprobs is None else PackedLogprobs.of(reading.logprobs)
        name, num_cached, queue_time = sequence.request.id, sequence.num_cached, sequence.queue_time
        return Update(name, token, own, read, None, reason, None, matched, num_cached, queue_time)

    def _take_tokens(
        self,
        sequence: Sequence,
        tokens: list[int],
        rows: Iterable[int],
        logprobs: PackedLogprobs | None,
        reading: Reading | None,
    ) -> Iterator[Update]:
        for row in rows:
            if sequence.status is not Status.FINISHED and not sequence.complete:
                yield self._take_token(sequence, tokens[row], row, logprobs, reading)
                reading = None

    def _follow(self, sequence: Sequence) -> Iterator[Update]:
        """The tokens that had to come after the one that was chosen, and the end of what may be said."""
        forced, sequence.forced = sequence.forced, ()
        for token in forced:
            if sequence.status is not Status.FINISHED:
                sequence.num_pending += 1
                self._masks.num_forced += 1
                yield self._take_token(sequence, token, 0, None, None)
        if sequence.complete and sequence.status is not Status.FINISHED:
            self._end(sequence)
            name, num_cached, queue_time = sequence.request.id, sequence.num_cached, sequence.queue_time
            yield Update(name, finish_reason=FinishReason.STOP, num_cached=num_cached, queue_time=queue_time)

    def _append(self, sequence: Sequence, token: int) -> tuple[FinishReason | None, int | None]:
        """Add a sampled token; the reason if it ends the sequence, and the stop token that did."""
        sequence.num_pending -= 1
        sequence.tokens.append(token)
        known = len(sequence.tokens)
        if known == sequence.num_prompt + 1:
            self._shedding.first_token(sequence, self.clock.now())
        if sequence.status is Status.WAITING:  # preempted while the step was in flight
            self._waiting.grew(sequence, 1)
        elif sequence.num_computed >= sequence.commit_at <= known:
            self._running.commit(sequence)
        request = sequence.request
        if token in sequence.stop_token_ids and known - sequence.num_prompt > request.params.min_tokens:
            self._end(sequence)
            return FinishReason.STOP, token if token in request.params.stop_token_ids else None
        if sequence.constraint is not None and not sequence.constraint.accept(token):
            sequence.complete = True
            return None, None
        if known >= sequence.limit:
            self._end(sequence)
            return FinishReason.LENGTH, None
        return None, None

    def _take_reading(self, sequence: Sequence, reading: Reading, *, last: bool) -> Iterator[Update]:
        """What was read of a chunk of a prompt, if anything; the `last` ends a sequence that generates nothing.

        So does the first that is not finite: how a prompt is cut into chunks must not decide what becomes of it.
        """
        logprobs = None if reading.logprobs is None else PackedLogprobs.of(reading.logprobs)
        vectors = None if reading.vectors is None else PackedVectors.of(reading.vectors, reading.num_tokens)
        name, num_cached, queue_time = sequence.request.id, sequence.num_cached, sequence.queue_time
        if not sequence.task.generates and not reading.is_finite:
            yield self._fail(sequence, InternalError(NOT_FINITE))
        elif sequence.task.generates or not last:
            if logprobs is not None or vectors is not None:
                yield Update(name, prompt_logprobs=logprobs, vectors=vectors)
        else:
            self._finish(sequence)
            yield Update(name, None, None, logprobs, vectors, FinishReason.LENGTH, num_cached=num_cached, queue_time=queue_time)

    def _end(self, sequence: Sequence) -> None:
        """It ended by itself: its length is what such outputs get to."""
        self.lengths.observe(sequence.request, sequence.num_output)
        self.promises.ended(sequence, self.clock.now())
        self._finish(sequence)

    def _fail(self, sequence: Sequence, error: JaxserveError) -> Update:
        self._finish(sequence)
        return Update(sequence.request.id, error=error)

    def _end_failed(self, ended: list[Update] | None = None) -> None:
        """End the sequences that failed alone. Raises AssertionError if one of them left an invariant broken."""
        if not self._containment.pending:
            return
        ended = self._ended if ended is None else ended
        failures = self._containment.take()
        for sequence, error in failures:
            if sequence.status is not Status.FINISHED:
                ended.append(self._fail(sequence, error))
        if any(isinstance(error, InternalError) for _, error in failures):
            self.check()

    def _displace(self, requests: ListOf[EngineRequest]) -> None:
        """Make room in the queue for requests of a tenant that has less in it than another."""
        while not self._bounds.has_room(requests):
            newest = self._waiting.newest_of_most_crowded(requests[0].tenant, len(requests))
            if newest is None:
                return
            error = OverloadedError(
                "the waiting queue is full, and this tenant has most of it",
                retry_after=self._bounds.seconds_to_wait(newest.request),
            )
            self._ended += [self._fail(one, error) for one in (*newest.siblings, newest)]

    def expire(self) -> None:
        """End sequences whose time is over."""
        now = self.clock.now()
        for sequence in self._starts.due(now):
            first = sequence.parent or sequence
            if sequence.admitted is not None or first.admitted is not None:  # with one sequence its request has started
                continue
            self._shedding.waited(sequence, now)
            siblings = list(sequence.siblings)
            error = late_start(sequence.request, now, self._bounds.seconds_to_wait(sequence.request))
            self._ended += [self._fail(one, error) for one in (*siblings, sequence)]
        for sequence in self._ends.due(now):
            self._ended.append(self._fail(sequence, late_end(sequence.request, now)))

    def _finish(self, sequence: Sequence) -> None:
        """The one place that ends a sequence and releases all it holds; a second call does nothing."""
        if sequence.status is Status.FINISHED:
            return
        if sequence.status is Status.RUNNING:
            self._running.stop(sequence)
        else:
            self._waiting.remove(sequence)
            self._running.forget_swapped(sequence)
        self._leave(sequence)
        self._drafting.ended(sequence)
        if sequence.siblings:  # it ended before its prompt was computed: the next one computes it
            self._waiting.succeed(sequence)
