"""Chooses what the next step computes.

    1. interactive decodes                     a token each, always
    2. interactive prompts that run            in order of precedence
    3. interactive requests that wait          while rows, pages and tokens last
    4. batch decodes, prompts, and requests    with what is left

While interactive sequences decode, the step is no larger than their time between tokens allows. A batch sequence is left
out of a few steps at most. Sequences that wait are admitted only in steps that preempted nothing.
"""

from __future__ import annotations

from jaxserve.cache.kv_cache import PrefixMatch
from jaxserve.clock import Clock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.policies import Policies
from jaxserve.scheduler.capacity import Capacity, Verdict
from jaxserve.scheduler.estimates import OutputLengths
from jaxserve.scheduler.fairness import PrefillTokens, TokenWork
from jaxserve.scheduler.pace import Pace
from jaxserve.scheduler.preemption import Preempter
from jaxserve.scheduler.request import Sequence, Status
from jaxserve.scheduler.running import RunningSet
from jaxserve.scheduler.step import Runnable, StepDraft
from jaxserve.scheduler.waiting import WaitingQueue
from jaxserve.types import ServiceClass

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
        pace: how large steps may be.
        preempter: takes pages from those who must give way.
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
        pace: Pace,
        preempter: Preempter,
    ) -> None:
        self._config = config
        self._policies = policies
        self._clock = clock
        self._running = running
        self._waiting = waiting
        self._work = work
        self._lengths = lengths
        self._pace = pace
        self._preempter = preempter
        self._num_admitted = 0
        self._yielded = 0  # steps in a row that left all batch decodes out
        self._turn = 0  # steps that took some of the batch decodes: each begins behind the one before

    def step(self) -> StepDraft:
        """The next step; it has no rows if there is nothing to compute."""
        draft = self._draft()
        self._decode(draft, draft.interactive.decodes)
        if self._yielded >= MAX_YIELDED:
            self._decode_batch(draft)
        self._prefill(draft, draft.interactive.prefills)
        if self._waiting.has_interactive:
            self._admit(draft, only_interactive=True)
        self._decode_batch(draft)
        self._prefill(draft, draft.batch.prefills)
        self._admit(draft, only_interactive=False)
        self._settle(draft)
        for sequence in draft.computed:
            self._waiting.put_back(self._waiting.release(sequence))
        return draft

    def _draft(self) -> StepDraft:
        """What could run, and how many tokens the step may have."""
        interactive, batch = Runnable(), Runnable()
        prompt_tokens = 0
        eager = self._waiting.tenants()
        for sequence in self._running.sequences:
            missing = len(sequence.tokens) + sequence.num_pending
            if missing >= sequence.limit:  # its last token is in flight
                continue
            missing -= sequence.num_computed
            group = batch if sequence.batch else interactive
            if missing == 1:
                group.decodes.append(sequence)
            else:
                group.prefills.append(sequence)
                prompt_tokens += missing
                eager.add(sequence.request.tenant)
        budget = self._config.max_num_batched_tokens
        if interactive.decodes:
            budget = self._pace.budget(len(interactive.decodes), prompt_tokens + self._waiting.num_tokens)
        return StepDraft(PrefillTokens(self._policies, budget, eager), interactive, batch)

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

    def _decode_batch(self, draft: StepDraft) -> None:
        """Batch decodes, in turns if the interactive ones beside them leave rows for some only."""
        sequences = [one for one in draft.batch.decodes if one.status is Status.RUNNING and one not in draft.chosen]
        if not sequences:
            return
        rows = len(sequences)
        if draft.interactive.decodes:
            rows = min(rows, self._pace.max_decodes() - len(draft.interactive.decodes))
            if self._yielded >= MAX_YIELDED:
                rows = max(rows, 1 + len(sequences) // MAX_YIELDED)
        if rows > 0 and draft.tokens.left > 0:
            self._yielded = 0
            first = self._turn % len(sequences) if rows < len(sequences) else 0
            self._turn += rows
            self._decode(draft, (sequences[first:] + sequences[:first])[:rows])
        else:
            self._yielded += 1

    def _prefill(self, draft: StepDraft, sequences: list[Sequence]) -> None:
        """The next chunk of each prompt, in order of precedence."""
        for sequence in sequences:
            if sequence.status is not Status.RUNNING:  # preempted a moment ago
                continue
            count = self._chunk(draft, sequence)
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
        if draft.preempted or not len(self._waiting):
            return
        self._settle(draft)
        skip: set[tuple[ServiceClass, str]] = set()
        capacity: Capacity | None = None
        while draft.tokens.left > 0:
            sequence = self._waiting.next(skip)
            if sequence is None or (only_interactive and not self._waiting.has_interactive):
                return
            if not self._running.rows.num_free:
                self._make_way(draft, sequence)
                return
            capacity = capacity or Capacity(
                self._config, self._policies, self._running.cache, self._lengths, self._pace, self._running.sequences
            )
            fork = self._can_fork(draft, sequence)
            match = self._running.match(sequence, fork=fork)
            verdict = capacity.verdict(sequence, match)
            if verdict is Verdict.WAIT:
                self._make_way(draft, sequence)
                return
            if verdict is Verdict.SKIP or draft.tokens.left_for(sequence.request.tenant) <= 0:
                skip.add((sequence.request.service_class, sequence.request.tenant))
                continue
            self._start(draft, sequence, match, fork=fork)
            capacity.started(sequence)

    def _start(self, draft: StepDraft, sequence: Sequence, match: PrefixMatch, *, fork: bool) -> None:
        """Admit the sequence and compute its first chunk."""
        now = self._clock.now()
        self._waiting.pop(sequence, now)
        if sequence.admitted is None:
            sequence.admitted = now
            sequence.queue_time = now - sequence.request.arrival
            sequence.order = self._num_admitted
            self._num_admitted += 1
        self._running.start(sequence, match, draft.moves, fork=fork)
        draft.admitted = True
        count = self._chunk(draft, sequence)
        grown = self._running.grow(sequence, sequence.num_computed + count)
        assert grown, "its pages were promised"
        draft.tokens.take(sequence.request.tenant, count)
        self._advance(draft, sequence, count)

    def _can_fork(self, draft: StepDraft, sequence: Sequence) -> bool:
        """Whether its parent's prompt is in the cache since an earlier step, to the last page."""
        parent = sequence.parent
        return (
            parent is not None
            and parent.status is Status.RUNNING
            and parent.num_computed >= parent.num_prompt
            and parent not in draft.prefilling
            and sequence.num_output == 0
        )

    def _make_way(self, draft: StepDraft, sequence: Sequence) -> None:
        """Preempt batch sequences if an interactive one could start in the next step for it."""
        if sequence.batch or draft.admitted:
            return
        interactive = sum(not one.batch for one in self._running.sequences)
        if interactive < self._pace.max_decodes():
            match = self._running.match(sequence, fork=self._can_fork(draft, sequence))
            self._preempter.make_way(draft, sequence, match)
