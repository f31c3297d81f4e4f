"""The scheduler: one rule, no prefill phase and no decode phase.

Every sequence's `num_computed` chases its `num_tokens` under one token budget a step. Running sequences come first, then waiting
ones; a prefix hit starts a sequence ahead; a long prompt takes several steps beside the others' decodes; when pages run out the
youngest running sequence gives its pages back and is computed again later, and nothing is admitted in such a step.
(The unified token budget follows vLLM's v1 scheduler and Sarathi-Serve, https://arxiv.org/abs/2403.02310.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from jaxserve.cache.kv_cache import KVCache, PrefixMatch
from jaxserve.clock import Clock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.errors import QueueFullError
from jaxserve.scheduler.plan import Plan, StepResult
from jaxserve.scheduler.planner import Planner
from jaxserve.scheduler.request import NO_SLOT, EngineRequest, Sequence, Status
from jaxserve.scheduler.rows import RowTable
from jaxserve.scheduler.update import Update
from jaxserve.types import FinishReason


class Scheduler:
    """Owns every sequence and the page pool; called by one thread.

    Args:
        config: budgets and limits.
        cache: the pages.
        max_model_len: longest prompt plus output, tokens.
        clock: time for queue statistics.
    """

    def __init__(self, config: SchedulerConfig, cache: KVCache, max_model_len: int, clock: Clock) -> None:
        self.cache = cache
        self._config = config
        self._max_model_len = max_model_len
        self._clock = clock
        self._low_watermark = int(cache.num_usable * config.low_watermark)  # pages
        self._high_watermark = int(cache.num_usable * config.high_watermark)
        self._rows = RowTable(config.max_num_seqs, cache.pages_for(max_model_len))
        self._planner = Planner(self._rows)
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []  # oldest first
        self._sequences: dict[str, Sequence] = {}
        self.num_preemptions = 0
        self.num_lost_tokens = 0  # computed tokens given up by preemptions; the prefix cache may still hold some

    @property
    def num_running(self) -> int:
        """Sequences that hold pages."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue, preempted ones included."""
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        """Whether any sequence is unfinished."""
        return bool(self._sequences)

    def has_room(self, count: int) -> bool:
        """Whether the waiting queue takes this many more sequences."""
        return len(self._waiting) + count <= self._config.max_waiting

    def add(self, requests: Iterable[EngineRequest]) -> None:
        """Queue the sequences of one request, all or none. Raises QueueFullError beyond `max_waiting` in the queue."""
        sequences = [Sequence.from_request(request) for request in requests]
        if not self.has_room(len(sequences)):
            limit = self._config.max_waiting
            raise QueueFullError(f"the waiting queue is full (max_waiting is {limit} sequences)", retry_after=1.0)
        self._sequences.update((sequence.request.id, sequence) for sequence in sequences)
        self._waiting.extend(sequences)

    def abort(self, ids: Iterable[str]) -> list[str]:
        """Finish sequences wherever they are; unknown and finished ones are passed over. Returns those that were active."""
        aborted = []
        for name in ids:
            sequence = self._sequences.get(name)
            if sequence is not None:
                self._finish(sequence)
                aborted.append(name)
        return aborted

    def schedule(self) -> Plan | None:
        """Plan the next step; None if there is nothing to compute."""
        budget = self._config.max_num_batched_tokens
        preempted = self.num_preemptions
        chosen: list[tuple[Sequence, int]] = []
        budget = self._schedule_running(chosen, budget)
        if self.num_preemptions == preempted:
            self._admit(chosen, budget)
        if not chosen:
            return None
        return self._planner.plan(chosen)

    def apply(self, plan: Plan, result: StepResult) -> list[Update]:
        """Take in a step's tokens: append them, finish what ends, and tell what happened, row after row."""
        updates = []
        scores = {score.row: rows for score, rows in zip(plan.scores, result.scores, strict=True)}
        samples = plan.samples.tolist()
        tokens = result.tokens.tolist()
        for row, name in enumerate(plan.ids):
            sequence = self._sequences.get(name)
            if sequence is None:  # finished while the step was in flight: its token is discarded
                continue
            score = scores.get(row)
            if not samples[row]:
                if score is not None:
                    updates.append(Update(name, score=score))
                continue
            token = tokens[row]
            reason, matched = self._append(sequence, token)
            logprobs = result.logprobs if sequence.request.params.logprobs is not None else None
            updates.append(
                Update(
                    name,
                    token,
                    logprobs,
                    row,
                    score,
                    reason,
                    matched=matched,
                    num_cached=sequence.num_cached,
                    queue_time=sequence.queue_time,
                )
            )
        return updates

    def check(self) -> None:
        """Assert the invariants between sequences, slots and pages."""
        running = set(map(id, self._running))
        waiting = set(map(id, self._waiting))
        assert len(running) + len(waiting) == len(self._sequences), "a sequence is in no queue, or in two"
        for sequence in self._sequences.values():
            assert (id(sequence) in running) == (sequence.status is Status.RUNNING) == (sequence.slot != NO_SLOT)
            assert (id(sequence) in waiting) == (sequence.status is Status.WAITING)
            assert sequence.num_computed <= sequence.num_tokens
            assert sequence.num_computed <= len(sequence.pages.pages) * self.cache.page_size
        slots = {sequence.slot for sequence in self._running}
        assert len(slots) == len(self._running) == self._config.max_num_seqs - self._rows.num_free
        self.cache.check(sequence.pages for sequence in self._sequences.values())

    def _schedule_running(self, chosen: list[tuple[Sequence, int]], budget: int) -> int:
        """Give running sequences, oldest first, their next tokens; returns the budget left."""
        index = 0
        while index < len(self._running) and budget > 0:
            sequence = self._running[index]
            index += 1
            count = self._next_count(sequence, budget)
            if count > 0 and self._make_room(sequence, sequence.num_computed + count):
                self._choose(sequence, count, chosen)
                budget -= count
        return budget

    def _next_count(self, sequence: Sequence, budget: int) -> int:
        """Tokens this sequence computes in this step."""
        if sequence.num_output >= sequence.request.max_tokens or sequence.num_tokens >= self._max_model_len:
            return 0  # its last token is in flight
        count = min(sequence.num_tokens - sequence.num_computed, budget)
        threshold = self._config.long_prefill_token_threshold
        return min(count, threshold) if threshold else count

    def _make_room(self, sequence: Sequence, num_tokens: int) -> bool:
        """Get pages for the sequence, preempting younger ones, the youngest first; False if it had to be preempted itself.

        A preemption does not stop at the page that was missing but at the high watermark: with one page at a time, nearly every
        step would preempt and recompute.
        """
        if self.cache.grow(sequence.pages, num_tokens):
            return True
        while self._running[-1] is not sequence and not self.cache.can_grow(
            sequence.pages, num_tokens, spare=self._high_watermark
        ):
            self._preempt(self._running[-1])
        if self.cache.grow(sequence.pages, num_tokens):
            return True
        self._preempt(sequence)
        return False

    def _preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's pages; it is computed again when it comes back from the front of the queue."""
        lost = sequence.num_computed
        self._stop_running(sequence)
        sequence.status = Status.WAITING
        self.num_preemptions += 1
        self.num_lost_tokens += lost
        self._waiting.appendleft(sequence)

    def _admit(self, chosen: list[tuple[Sequence, int]], budget: int) -> None:
        """Start waiting sequences, first come first served, while budget, slots and pages last.

        Pages that running sequences still need for tokens they already have are spoken for: prompts that are computed chunk by
        chunk would otherwise be admitted to the same free pages and preempt one another.
        """
        reserved = sum(self._missing_pages(sequence) for sequence in self._running) if self._waiting else 0
        while self._waiting and budget > 0 and self._rows.num_free > 0:
            sequence = self._waiting[0]
            match = self._find_prefix(sequence)
            spare = self._low_watermark + reserved if self._running else 0
            if not self.cache.fits(match, len(sequence.tokens), spare=spare):
                return
            self._waiting.popleft()
            self._start(sequence)
            sequence.pages = self.cache.begin(match, len(sequence.tokens))
            sequence.num_computed = match.num_tokens
            if sequence.admitted is None:
                sequence.admitted = self._clock.now()
                sequence.queue_time = sequence.admitted - sequence.request.arrival
                sequence.num_cached = match.num_tokens
            count = self._next_count(sequence, budget)
            grown = self.cache.grow(sequence.pages, sequence.num_computed + count)
            assert grown, "fits() promised these pages"
            self._choose(sequence, count, chosen)
            budget -= count
            reserved += self._missing_pages(sequence)

    def _missing_pages(self, sequence: Sequence) -> int:
        """Pages for tokens that the sequence has and did not get pages for yet."""
        return max(0, self.cache.pages_for(len(sequence.tokens)) - len(sequence.pages.pages))

    def _find_prefix(self, sequence: Sequence) -> PrefixMatch:
        """What the prefix cache has of the sequence; nothing while every prompt token must run to be scored."""
        if sequence.wants_scores:
            return PrefixMatch(sequence.request.cache_root)
        return self.cache.find(sequence.request.cache_root, sequence.tokens, sequence.prefix_hashes)

    def _start(self, sequence: Sequence) -> None:
        sequence.status = Status.RUNNING
        sequence.slot = self._rows.take(sequence)
        self._running.append(sequence)

    def _choose(self, sequence: Sequence, count: int, chosen: list[tuple[Sequence, int]]) -> None:
        """Put the sequence's next `count` tokens into the step."""
        self._rows.set_pages(sequence.slot, sequence.pages.pages)
        sequence.num_computed += count
        self.cache.commit(sequence.pages, sequence.tokens, sequence.num_computed)
        chosen.append((sequence, count))

    def _append(self, sequence: Sequence, token: int) -> tuple[FinishReason | None, int | None]:
        """Add a sampled token; the reason if it ends the sequence, and the stop token that did."""
        sequence.num_pending -= 1
        sequence.tokens.append(token)
        if sequence.status is Status.RUNNING:
            self.cache.commit(sequence.pages, sequence.tokens, sequence.num_computed)
        reason, matched = None, None
        num_output = len(sequence.tokens) - sequence.num_prompt
        if token in sequence.stop_token_ids and num_output > sequence.request.params.min_tokens:
            reason = FinishReason.STOP
            matched = token if token in sequence.request.params.stop_token_ids else None
        elif num_output >= sequence.request.max_tokens or len(sequence.tokens) >= self._max_model_len:
            reason = FinishReason.LENGTH
        if reason is not None:
            self._finish(sequence)
        return reason, matched

    def _finish(self, sequence: Sequence) -> None:
        """The one place that ends a sequence and releases all it holds; a second call does nothing."""
        if sequence.status is Status.FINISHED:
            return
        if sequence.status is Status.RUNNING:
            self._stop_running(sequence)
        else:
            self._waiting.remove(sequence)
        sequence.status = Status.FINISHED
        del self._sequences[sequence.request.id]

    def _stop_running(self, sequence: Sequence) -> None:
        """Release pages and slot. Steps run in order, so a step in flight is done with them before a later one starts."""
        self.cache.release(sequence.pages)
        self._rows.give_back(sequence.slot)
        self._running.remove(sequence)
        sequence.slot = NO_SLOT
        sequence.num_computed = 0
        sequence.state_loaded = False
