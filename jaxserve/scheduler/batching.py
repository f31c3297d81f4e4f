"""Chooses what the next step computes.

    1. interactive decodes                     a token each, always
    2. interactive prompts that run            in order of precedence
    3. interactive requests that wait          while rows, pages and tokens last
    4. batch decodes, prompts, and requests    with what is left

While interactive sequences decode, the step is no larger than their time between tokens allows; `BatchHeadroom` says what else
batch leaves to them. A batch sequence is left out of a few steps at most. Sequences that wait are admitted only in steps that
preempted nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from jaxserve.cache.sequence_pages import PrefixMatch
from jaxserve.clock import Clock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.policies import Policies
from jaxserve.scheduler.adapters import AdapterTable
from jaxserve.scheduler.capacity import Capacity, Verdict
from jaxserve.scheduler.choice import Runnable, StepChoice
from jaxserve.scheduler.constraints import MAX_FORCED
from jaxserve.scheduler.device_drafting import DeviceDrafting
from jaxserve.scheduler.drafting import Drafting
from jaxserve.scheduler.estimates import OutputLengths
from jaxserve.scheduler.fairness import PrefillTokens, TokenWork
from jaxserve.scheduler.policy import Policy
from jaxserve.scheduler.preemption import Preempter
from jaxserve.scheduler.request import PREEMPTIONS_A_CLASS, Sequence, Status
from jaxserve.scheduler.running import RunningSet
from jaxserve.scheduler.step_budget import SPARE, BatchHeadroom, StepBudget
from jaxserve.scheduler.waiting import WaitingQueue
from jaxserve.step.buckets import FEW_TOKENS

MAX_YIELDED = 8  # steps in a row that may leave all batch decodes out


class Batcher:
    """Makes steps of the sequences that run and wait.

    Args:
        work: charged with what steps compute.
        preempter: takes pages from those who must give way.
        started: told of every sequence that leaves the queue for the first time.
        drafting: gives rows drafts.
        policy: whether any may start.
        adapters: where those of sequences are; None if none has any.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        policies: Policies,
        clock: Clock,
        running: RunningSet,
        waiting: WaitingQueue,
        work: TokenWork,
        lengths: OutputLengths,
        step_budget: StepBudget,
        preempter: Preempter,
        started: Callable[[Sequence], None],
        drafting: Drafting | DeviceDrafting,
        policy: Policy,
        adapters: AdapterTable | None,
    ) -> None:
        self._adapters = adapters
        self._config = config
        self._policies = policies
        self._clock = clock
        self._running = running
        self._waiting = waiting
        self._work = work
        self._lengths = lengths
        self._step_budget = step_budget
        self._preempter = preempter
        self._started = started
        self._drafting = drafting
        self._policy = policy
        self._batch_headroom = BatchHeadroom(config, step_budget)
        self._num_admitted = 0
        self._yielded = 0  # steps in a row that left all batch decodes out
        self.holds = False
        self._turn = 0  # steps that took some of the batch decodes: each begins behind the one before

    @property
    def num_adapter_loads(self) -> int:
        """Adapters that came into a slot, so far."""
        return 0 if self._adapters is None else self._adapters.num_loads

    def step(self) -> StepChoice:
        """The next step; it has no rows if there is nothing to compute."""
        choice = self._begin()
        self._decode(choice, choice.interactive.decodes)
        self._draft(choice)
        if choice.others or len(self._waiting):
            self._fill(choice)
        else:  # nearly every step, and the device may wait for it
            self._settle(choice)
            self._yielded = 0
        for sequence in choice.short:
            self._running.commit(sequence)
        for sequence in choice.computed:
            self._waiting.put_back(self._waiting.release(sequence))
        if self._adapters is not None:
            choice.failed = self._adapters.take_failed()
            choice.adapter_loads = self._adapters.place(choice.rows)
        choice.tokens_held = choice.allowed > 0.0 and choice.tokens.taken >= choice.most
        return choice

    def _fill(self, choice: StepChoice) -> None:
        if self._yielded >= MAX_YIELDED:
            self._let_batch_in(choice)
        self._prefill(choice, choice.interactive.prefills)
        if self._waiting.has_interactive:
            self._admit(choice, only_interactive=True)
        most = choice.most if self._config.whole_prompts else self._most_with_batch(choice)  # parts would wait for ever
        if not choice.allowed and most < choice.most:
            choice.most, choice.allowed = most, self._step_budget.allowed(0, 0)
        choice.tokens.bound(most)
        self._decode_batch(choice)
        self._prefill(choice, choice.batch.prefills)
        self._admit(choice, only_interactive=False)
        self._settle(choice)
        choice.tokens.release()  # reserves that were not used: some prompt may have got nothing because of them
        self._prefill(choice, choice.interactive.prefills)
        choice.tokens.bound(most)
        self._prefill(choice, choice.batch.prefills)
        self._settle(choice)
        choice.tokens.release()
        waits = choice.batch.decodes or choice.batch.prefills
        ran = any(sequence.batch for sequence in choice.settled)
        self._yielded = self._yielded + 1 if waits and not ran else 0
        choice.full |= len(self._waiting) > 0 and (choice.preempted or choice.tokens.left <= 0)

    def _begin(self) -> StepChoice:
        self._running.slide()
        interactive, batch = Runnable(), Runnable()
        prompt_tokens = 0
        eager = dict.fromkeys(self._waiting.tenants(), math.inf) if self._running.rows.num_free else {}
        for sequence in self._running.sequences:
            missing = len(sequence.tokens) + sequence.num_pending + len(sequence.forced)
            if missing >= sequence.limit and (sequence.task.generates or sequence.num_computed >= missing):
                continue  # its end is in flight
            missing -= sequence.num_computed
            low = sequence.batch and sequence.num_preemptions < PREEMPTIONS_A_CLASS  # else it precedes some interactive ones
            group = batch if low else interactive
            few = 1 if sequence.constraint is None else 1 + MAX_FORCED
            if 1 <= missing <= few and sequence.num_computed >= sequence.num_prompt:
                group.decodes.append(sequence)
            else:
                group.prefills.append(sequence)
                prompt_tokens += 0 if low else missing
                eager[sequence.request.tenant] = eager.get(sequence.request.tenant, 0) + missing
        runs = bool(interactive.decodes or interactive.prefills)
        self._batch_headroom.look(self._clock.now(), interactive=runs or self._waiting.has_interactive)
        others = bool(interactive.prefills or batch.decodes or batch.prefills)
        budget, allowed = self._config.max_num_batched_tokens, 0.0
        if interactive.decodes and (others or len(self._waiting)):
            size = len(interactive.decodes), prompt_tokens + self._waiting.interactive_tokens
            budget, allowed = self._step_budget.budget(*size), self._step_budget.allowed(*size)
        return StepChoice(PrefillTokens(self._policies, budget, eager), interactive, batch, others, most=budget, allowed=allowed)

    def _decode(self, choice: StepChoice, sequences: list[Sequence]) -> None:
        chosen, tokens = choice.chosen, choice.tokens
        for sequence in sequences:
            if tokens.left <= 0:
                return
            count = 1 if sequence.constraint is None else min(sequence.num_tokens - sequence.num_computed, tokens.left)
            end = sequence.num_computed + count
            if end > sequence.capacity and not self._grow(choice, sequence, end):
                continue
            chosen[sequence] = count
            tokens.left -= count

    def _draft(self, choice: StepChoice) -> None:
        """Give drafts to the decodes that were just chosen. Batch gets none beside interactive work."""
        if not choice.chosen:
            return
        interactive = choice.interactive
        prompts = bool(interactive.prefills or choice.batch.prefills)
        prompts |= len(self._waiting) > 0 and self._running.rows.num_free > 0
        limit = self._config.itl_target if interactive.decodes else 0.0
        self._drafting.give(choice, self.room_for_drafts, prompts=prompts, limit=limit)

    def room_for_drafts(self, sequence: Sequence, end: int) -> bool:
        """Get pages for so many tokens without anybody giving way."""
        return end <= sequence.capacity or (self._preempter.within_cap(sequence, end) and self._running.grow(sequence, end))

    def _let_batch_in(self, choice: StepChoice) -> None:
        """Batch was left out too often: some of its decodes and a small chunk of one of its prompts go first for once."""
        self._decode_turn(choice, max(1 + len(choice.batch.decodes) // MAX_YIELDED, self._batch_rows(choice)))
        for sequence in choice.batch.prefills[:1]:
            self._prefill(choice, [sequence], at_most=self._step_budget.smallest)

    def _most_with_batch(self, choice: StepChoice) -> int:
        """Tokens of the step that batch may fill it up to."""
        prompts = any(sequence in choice.chosen for sequence in choice.interactive.prefills)
        prompts = prompts or any(not sequence.batch for sequence in choice.prefilling)
        return self._batch_headroom.most_tokens(choice.tokens.taken, prompts=prompts, decodes=bool(choice.interactive.decodes))

    def _decode_batch(self, choice: StepChoice) -> None:
        """Batch decodes, in turns if the interactive ones beside them leave rows for some only."""
        self._decode_turn(choice, self._batch_rows(choice))
        interactive = choice.interactive
        if not (interactive.decodes or interactive.prefills or self._waiting.has_interactive):
            self._draft(choice)

    def _batch_rows(self, choice: StepChoice) -> int:
        if not choice.interactive.decodes:
            return len(choice.batch.decodes)
        return self._step_budget.max_decodes() - len(choice.interactive.decodes)

    def _decode_turn(self, choice: StepChoice, rows: int) -> None:
        """So many of the batch decodes; each turn begins behind the one before."""
        sequences = [one for one in choice.batch.decodes if one not in choice.chosen and one not in choice.settled]
        choice.rows_held |= rows < len(sequences)
        if not sequences or rows <= 0:
            return
        first = self._turn % len(sequences) if rows < len(sequences) else 0
        self._turn += rows
        self._decode(choice, (sequences[first:] + sequences[:first])[:rows])

    def _prefill(self, choice: StepChoice, sequences: list[Sequence], at_most: int | None = None) -> None:
        """The next chunk of each prompt that has none in this step, in order of precedence."""
        for sequence in sequences:
            if sequence.status is not Status.RUNNING or sequence in choice.chosen or sequence in choice.settled:
                continue
            count = self._chunk(choice, sequence)
            if at_most is not None and not self._config.whole_prompts:
                count = min(count, at_most)
            if count > 0 and self._grow(choice, sequence, sequence.num_computed + count):
                choice.chosen[sequence] = count
                choice.tokens.take(sequence.request.tenant, count)

    def _chunk(self, choice: StepChoice, sequence: Sequence) -> int:
        missing, left = sequence.num_tokens - sequence.num_computed, choice.tokens.left_for(sequence.request.tenant)
        if self._config.whole_prompts:
            room = left if choice.tokens.taken else choice.tokens.left  # reserves must not leave a step empty
            return missing if missing <= room else 0
        count = min(missing, left)
        threshold = self._config.long_prefill_token_threshold
        return min(count, threshold) if threshold else count

    def _grow(self, choice: StepChoice, sequence: Sequence, num_tokens: int) -> bool:
        """Get pages for the sequence, preempting others if none was admitted in this step; False if it cannot run in it."""
        if sequence.status is not Status.RUNNING:
            return False
        if self._preempter.within_cap(sequence, num_tokens) and self._running.grow(sequence, num_tokens):
            return True
        return not choice.admitted and self._preempter.make_room(choice, sequence, num_tokens)

    def _settle(self, choice: StepChoice) -> None:
        """From here on the chosen rows are in the step: what they fill can be found, and their tenants are charged."""
        choice.settled.update(choice.chosen)
        decodes: dict[str, int] = {}
        for sequence, count in choice.chosen.items():
            if count == 1 and sequence.num_computed >= sequence.num_prompt:  # nearly every row
                sequence.num_computed += 1
                if sequence.num_computed > sequence.num_charged:
                    sequence.num_charged = sequence.num_computed
                    tenant = sequence.request.tenant
                    decodes[tenant] = decodes.get(tenant, 0) + 1
                choice.rows.append((sequence, 1))
            else:
                self._advance(choice, sequence, count)
        choice.chosen.clear()
        for tenant, count in decodes.items():
            self._work.charge(tenant, 0, count)

    def _advance(self, choice: StepChoice, sequence: Sequence, count: int) -> None:
        start, end, prompt = sequence.num_computed, sequence.num_computed + count, sequence.num_prompt
        sequence.num_computed = end
        new = max(start, sequence.num_charged)
        if end > new:
            self._work.charge(sequence.request.tenant, max(0, min(end, prompt) - new), max(0, end - max(new, prompt)))
            sequence.num_charged = end
        if count > FEW_TOKENS:
            self._running.commit(sequence)
        else:
            choice.short.append(sequence)
        choice.rows.append((sequence, count))
        if start < prompt:
            choice.prefill_tokens += count
            choice.prefilling.add(sequence)
        if end >= prompt and sequence.siblings:
            choice.computed.append(sequence)

    def _admit(self, choice: StepChoice, *, only_interactive: bool) -> None:
        if choice.preempted or choice.tokens.left <= 0 or not len(self._waiting):
            return
        rows = self._running.rows
        batch_runs = choice.batch.decodes or choice.batch.prefills
        if not rows.num_free and not (batch_runs and self._waiting.has_interactive):  # nobody makes way
            choice.full = True
            return
        self._settle(choice)
        order = self._waiting.order()
        capacity = Capacity(
            self._config,
            self._policies,
            self._running.cache,
            self._lengths,
            self._step_budget,
            self._running,
            self._batch_headroom.spare_rows,
            min(-(-self._config.max_num_seqs // SPARE), self._config.max_num_seqs - 1) if self._waiting.is_shed else 0,
        )
        while choice.tokens.left > 0:
            sequence = order.next(only_interactive=only_interactive)
            if sequence is None or (self.holds and sequence.admitted is None):
                return
            if not self._policy.may_start(len(self._running), len(self._waiting), self._num_admitted):
                return
            if self._adapters is not None and not self._adapters.has_place(sequence, self._clock.now()):
                order.skip(sequence)
                continue
            choice.rows_held |= rows.num_free > 0 and not capacity.pace_allows(sequence)
            fork = self._can_fork(choice, sequence)
            match = self._running.match(sequence, fork=fork)
            verdict = capacity.verdict(sequence, match)
            if verdict is Verdict.CLASS:
                order.skip_class(sequence.service_class)
            elif verdict is Verdict.TENANT or choice.tokens.left_for(sequence.request.tenant) <= 0:
                order.skip_tenant(sequence)
            elif verdict is Verdict.START and rows.num_free and not self._begins(choice, sequence):
                order.skip(sequence)
            elif verdict is Verdict.START and rows.num_free:
                self._start(choice, sequence, match, fork=fork)
                capacity.started(sequence)
                order.admitted(sequence)
            elif sequence.batch and self._waiting.has_interactive:  # it is first by its age, and only batch waits for it
                order.skip_class(sequence.service_class)
            elif not self._make_room_to_start(choice, sequence, match, capacity):
                choice.full = True
                return

    def _begins(self, choice: StepChoice, sequence: Sequence) -> bool:
        """Whether its prompt fits into the step, where it must be whole, and its adapter is in a slot."""
        if self._config.whole_prompts and not self._chunk(choice, sequence):  # it is the first again in the next step
            return False
        return self._adapters is None or self._adapters.start(sequence)

    def _start(self, choice: StepChoice, sequence: Sequence, match: PrefixMatch, *, fork: bool) -> None:
        now = self._clock.now()
        self._waiting.pop(sequence, now)
        if sequence.admitted is None:
            sequence.admitted = now
            sequence.queue_time = now - sequence.request.arrival
            sequence.order = self._num_admitted
            self._num_admitted += 1
            self._started(sequence)
        self._running.start(sequence, match, fork=fork, expected=self._lengths.expected(sequence.request))
        choice.admitted = True
        choice.prefilling.add(sequence)  # its prefix may be computed by another row of this step
        count = self._chunk(choice, sequence)
        grown = self._running.grow(sequence, sequence.num_computed + count)
        assert grown, "its pages were promised"
        choice.tokens.take(sequence.request.tenant, count)
        self._advance(choice, sequence, count)

    def _can_fork(self, choice: StepChoice, sequence: Sequence) -> bool:
        """Whether its parent's prompt is in the cache since an earlier step, to the last page, as far as it needs it."""
        parent = sequence.parent
        return (
            parent is not None
            and parent.status is Status.RUNNING
            and parent.num_computed >= parent.num_prompt
            and parent not in choice.prefilling
            and sequence.num_output == 0
            and self._running.cache.can_fork(parent.pages, parent.num_prompt - 1)
        )

    def _make_room_to_start(self, choice: StepChoice, sequence: Sequence, match: PrefixMatch, capacity: Capacity) -> bool:
        """What can be done for a sequence that finds no room; whether it may be asked about again in this step.

        Batch sequences make way for an interactive one, which then starts in the next step; pins, which may be all that is in the
        way, are dropped where nothing runs.
        """
        if not len(self._running):
            pinned = self._running.cache.num_pinned > 0
            self._running.cache.unpin_all()
            return pinned
        if not sequence.batch and not choice.admitted and capacity.rows_allow(sequence):
            self._preempter.make_way(choice, sequence, match)
        return False
