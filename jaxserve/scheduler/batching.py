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

from jaxserve.cache.kv_cache import PrefixMatch
from jaxserve.clock import Clock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.policies import Policies
from jaxserve.scheduler.capacity import Capacity, Verdict
from jaxserve.scheduler.draft import Runnable, StepDraft
from jaxserve.scheduler.estimates import OutputLengths
from jaxserve.scheduler.fairness import PrefillTokens, TokenWork
from jaxserve.scheduler.preemption import Preempter
from jaxserve.scheduler.request import PREEMPTIONS_A_CLASS, Sequence, Status
from jaxserve.scheduler.running import RunningSet
from jaxserve.scheduler.step_budget import SPARE, BatchHeadroom, StepBudget
from jaxserve.scheduler.waiting import WaitingQueue

MAX_YIELDED = 8  # steps in a row that may leave all batch decodes out


class Batcher:
    """Makes steps of the sequences that run and wait.

    Args:
        config: budgets and limits.
        policies: what classes and tenants may take.
        clock: time of admissions.
        running, waiting: the sequences.
        work: charged with what steps compute.
        lengths: output lengths to expect.
        step_budget: how large steps may be.
        preempter: takes pages from those who must give way.
        started: told of every sequence that leaves the queue for the first time.
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
    ) -> None:
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
        self._batch_headroom = BatchHeadroom(config, step_budget)
        self._num_admitted = 0
        self._yielded = 0  # steps in a row that left all batch decodes out
        self._turn = 0  # steps that took some of the batch decodes: each begins behind the one before

    def step(self) -> StepDraft:
        """The next step; it has no rows if there is nothing to compute."""
        draft = self._draft()
        self._decode(draft, draft.interactive.decodes)
        if draft.others or len(self._waiting):
            self._fill(draft)
        else:  # nearly every step, and the device may wait for it
            self._settle(draft)
            self._yielded = 0
        for sequence in draft.computed:
            self._waiting.put_back(self._waiting.release(sequence))
        draft.tokens_held = draft.allowed > 0.0 and draft.tokens.taken >= draft.most
        return draft

    def _fill(self, draft: StepDraft) -> None:
        """What the step computes beside the interactive decodes."""
        if self._yielded >= MAX_YIELDED:
            self._let_batch_in(draft)
        self._prefill(draft, draft.interactive.prefills)
        if self._waiting.has_interactive:
            self._admit(draft, only_interactive=True)
        most = self._most_with_batch(draft)
        if not draft.allowed and most < draft.most:
            draft.most, draft.allowed = most, self._step_budget.allowed(0, 0)
        draft.tokens.bound(most)
        self._decode_batch(draft)
        self._prefill(draft, draft.batch.prefills)
        self._admit(draft, only_interactive=False)
        self._settle(draft)
        draft.tokens.release()  # reserves that were not used: some prompt may have got nothing because of them
        self._prefill(draft, draft.interactive.prefills)
        draft.tokens.bound(most)
        self._prefill(draft, draft.batch.prefills)
        self._settle(draft)
        draft.tokens.release()
        waits = draft.batch.decodes or draft.batch.prefills
        ran = any(sequence.batch for sequence in draft.settled)
        self._yielded = self._yielded + 1 if waits and not ran else 0
        draft.full |= len(self._waiting) > 0 and (draft.preempted or draft.tokens.left <= 0)

    def _draft(self) -> StepDraft:
        """What could run, and how many tokens the step may have."""
        self._running.slide()
        interactive, batch = Runnable(), Runnable()
        prompt_tokens = 0
        eager = dict.fromkeys(self._waiting.tenants(), math.inf) if self._running.rows.num_free else {}
        for sequence in self._running.sequences:
            missing = len(sequence.tokens) + sequence.num_pending
            if missing >= sequence.limit:  # its last token is in flight
                continue
            missing -= sequence.num_computed
            low = sequence.batch and sequence.num_preemptions < PREEMPTIONS_A_CLASS  # else it precedes some interactive ones
            group = batch if low else interactive
            if missing == 1:
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
        return StepDraft(PrefillTokens(self._policies, budget, eager), interactive, batch, others, most=budget, allowed=allowed)

    def _decode(self, draft: StepDraft, sequences: list[Sequence]) -> None:
        """One token of each, as far as tokens and pages last."""
        chosen, tokens = draft.chosen, draft.tokens
        for sequence in sequences:
            if tokens.left <= 0:
                return
            if sequence.num_computed >= sequence.capacity and not self._grow(draft, sequence, sequence.num_computed + 1):
                continue
            chosen[sequence] = 1
            tokens.left -= 1

    def _let_batch_in(self, draft: StepDraft) -> None:
        """Batch was left out too often: some of its decodes and a small chunk of one of its prompts go first for once."""
        self._decode_turn(draft, max(1 + len(draft.batch.decodes) // MAX_YIELDED, self._batch_rows(draft)))
        for sequence in draft.batch.prefills[:1]:
            self._prefill(draft, [sequence], at_most=self._step_budget.smallest)

    def _most_with_batch(self, draft: StepDraft) -> int:
        """Tokens of the step that batch may fill it up to."""
        prompts = any(sequence in draft.chosen for sequence in draft.interactive.prefills)
        prompts = prompts or any(not sequence.batch for sequence in draft.prefilling)
        return self._batch_headroom.most_tokens(draft.tokens.taken, prompts=prompts, decodes=bool(draft.interactive.decodes))

    def _decode_batch(self, draft: StepDraft) -> None:
        """Batch decodes, in turns if the interactive ones beside them leave rows for some only."""
        self._decode_turn(draft, self._batch_rows(draft))

    def _batch_rows(self, draft: StepDraft) -> int:
        """Batch decodes that the interactive ones beside them allow."""
        if not draft.interactive.decodes:
            return len(draft.batch.decodes)
        return self._step_budget.max_decodes() - len(draft.interactive.decodes)

    def _decode_turn(self, draft: StepDraft, rows: int) -> None:
        """So many of the batch decodes; each turn begins behind the one before."""
        sequences = [one for one in draft.batch.decodes if one not in draft.chosen and one not in draft.settled]
        draft.rows_held |= rows < len(sequences)
        if not sequences or rows <= 0:
            return
        first = self._turn % len(sequences) if rows < len(sequences) else 0
        self._turn += rows
        self._decode(draft, (sequences[first:] + sequences[:first])[:rows])

    def _prefill(self, draft: StepDraft, sequences: list[Sequence], at_most: int | None = None) -> None:
        """The next chunk of each prompt that has none in this step, in order of precedence."""
        for sequence in sequences:
            if sequence.status is not Status.RUNNING or sequence in draft.chosen or sequence in draft.settled:
                continue
            count = self._chunk(draft, sequence)
            if at_most is not None:
                count = min(count, at_most)
            if count > 0 and self._grow(draft, sequence, sequence.num_computed + count):
                draft.chosen[sequence] = count
                draft.tokens.take(sequence.request.tenant, count)

    def _chunk(self, draft: StepDraft, sequence: Sequence) -> int:
        """Tokens that the sequence computes in this step."""
        count = min(sequence.num_tokens - sequence.num_computed, draft.tokens.left_for(sequence.request.tenant))
        threshold = self._config.long_prefill_token_threshold
        return min(count, threshold) if threshold else count

    def _grow(self, draft: StepDraft, sequence: Sequence, num_tokens: int) -> bool:
        """Get pages for the sequence, preempting others if none was admitted in this step; False if it cannot run in it."""
        if sequence.status is not Status.RUNNING:
            return False
        if self._preempter.within_cap(sequence, num_tokens) and self._running.grow(sequence, num_tokens):
            return True
        return not draft.admitted and self._preempter.make_room(draft, sequence, num_tokens)

    def _settle(self, draft: StepDraft) -> None:
        """From here on the chosen rows are in the step: what they fill can be found, and their tenants are charged."""
        draft.settled.update(draft.chosen)
        decodes: dict[str, int] = {}
        for sequence, count in draft.chosen.items():
            if count == 1 and sequence.num_computed >= sequence.num_prompt:  # nearly every row
                sequence.num_computed += 1
                if sequence.num_computed > sequence.num_charged:
                    sequence.num_charged = sequence.num_computed
                    tenant = sequence.request.tenant
                    decodes[tenant] = decodes.get(tenant, 0) + 1
                draft.rows.append((sequence, 1))
            else:
                self._advance(draft, sequence, count)
        draft.chosen.clear()
        for tenant, count in decodes.items():
            self._work.charge(tenant, 0, count)

    def _advance(self, draft: StepDraft, sequence: Sequence, count: int) -> None:
        """Settle a row with prompt tokens, or with outputs that are computed again."""
        start, end, prompt = sequence.num_computed, sequence.num_computed + count, sequence.num_prompt
        sequence.num_computed = end
        new = max(start, sequence.num_charged)
        if end > new:
            self._work.charge(sequence.request.tenant, max(0, min(end, prompt) - new), max(0, end - max(new, prompt)))
            sequence.num_charged = end
        self._running.commit(sequence)
        draft.rows.append((sequence, count))
        if start < prompt:
            draft.prefilling.add(sequence)
            if end >= prompt and sequence.siblings:
                draft.computed.append(sequence)

    def _admit(self, draft: StepDraft, *, only_interactive: bool) -> None:
        """Start waiting sequences while tokens, slots and pages last."""
        if draft.preempted or draft.tokens.left <= 0 or not len(self._waiting):
            return
        rows = self._running.rows
        batch_runs = draft.batch.decodes or draft.batch.prefills
        if not rows.num_free and not (batch_runs and self._waiting.has_interactive):  # nobody makes way
            draft.full = True
            return
        self._settle(draft)
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
        while draft.tokens.left > 0:
            sequence = order.next(only_interactive=only_interactive)
            if sequence is None:
                return
            draft.rows_held |= rows.num_free > 0 and not capacity.pace_allows(sequence)
            fork = self._can_fork(draft, sequence)
            match = self._running.match(sequence, fork=fork)
            verdict = capacity.verdict(sequence, match)
            if verdict is Verdict.CLASS:
                order.skip_class(sequence.service_class)
            elif verdict is Verdict.TENANT or draft.tokens.left_for(sequence.request.tenant) <= 0:
                order.skip_tenant(sequence)
            elif verdict is Verdict.START and rows.num_free:
                self._start(draft, sequence, match, fork=fork)
                capacity.started(sequence)
                order.admitted(sequence)
            elif sequence.batch and self._waiting.has_interactive:  # it is first by its age, and only batch waits for it
                order.skip_class(sequence.service_class)
            elif not self._make_room_to_start(draft, sequence, match, capacity):
                draft.full = True
                return

    def _start(self, draft: StepDraft, sequence: Sequence, match: PrefixMatch, *, fork: bool) -> None:
        """Admit the sequence and compute its first chunk."""
        now = self._clock.now()
        self._waiting.pop(sequence, now)
        if sequence.admitted is None:
            sequence.admitted = now
            sequence.queue_time = now - sequence.request.arrival
            sequence.order = self._num_admitted
            self._num_admitted += 1
            self._started(sequence)
        self._running.start(sequence, match, fork=fork, expected=self._lengths.expected(sequence.request))
        draft.admitted = True
        draft.prefilling.add(sequence)  # its prefix may be computed by another row of this step
        count = self._chunk(draft, sequence)
        grown = self._running.grow(sequence, sequence.num_computed + count)
        assert grown, "its pages were promised"
        draft.tokens.take(sequence.request.tenant, count)
        self._advance(draft, sequence, count)

    def _can_fork(self, draft: StepDraft, sequence: Sequence) -> bool:
        """Whether its parent's prompt is in the cache since an earlier step, to the last page, as far as it needs it."""
        parent = sequence.parent
        return (
            parent is not None
            and parent.status is Status.RUNNING
            and parent.num_computed >= parent.num_prompt
            and parent not in draft.prefilling
            and sequence.num_output == 0
            and self._running.cache.can_fork(parent.pages, parent.num_prompt - 1)
        )

    def _make_room_to_start(self, draft: StepDraft, sequence: Sequence, match: PrefixMatch, capacity: Capacity) -> bool:
        """What can be done for a sequence that finds no room; whether it may be asked about again in this step.

        Batch sequences make way for an interactive one, which then starts in the next step; pins, which may be all that is in the
        way, are dropped where nothing runs.
        """
        if not len(self._running):
            pinned = self._running.cache.num_pinned > 0
            self._running.cache.unpin_all()
            return pinned
        if not sequence.batch and not draft.admitted and capacity.rows_allow(sequence):
            self._preempter.make_way(draft, sequence, match)
        return False
