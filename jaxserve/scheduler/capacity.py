"""Whether a waiting sequence may start now: rows within the ITL target, pages now and later, tenants' and classes' shares.

Pages are promised with foresight: a sequence starts if, with the output lengths expected, the most pages ever needed by what runs
and it fit the pool; what batch sequences will need does not keep an interactive one waiting. Where expectations are wrong,
preemption corrects them. (Gong et al., Past-Future Scheduler for LLM Serving under SLA Guarantees, ASPLOS 2025,
https://arxiv.org/abs/2507.10150.)
"""

from __future__ import annotations

from enum import Enum

import numpy as np

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.page_pool import NULL_PAGE
from jaxserve.cache.sequence_pages import PrefixMatch
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.policies import Policies
from jaxserve.config.windows import touched_pages
from jaxserve.scheduler.estimates import OutputLengths
from jaxserve.scheduler.request import Sequence
from jaxserve.scheduler.running import RunningSet
from jaxserve.scheduler.step_budget import StepBudget


class Verdict(Enum):
    """START it; or nothing of its TENANT or its CLASS may start now, others may; or there is no ROOM."""

    START = "start"
    TENANT = "tenant"
    CLASS = "class"
    ROOM = "room"


class Capacity:
    """Room in one step; made anew for each that admits.

    Args:
        spare_rows: that batch does not start in.
        kept_rows: of those that interactive sequences may have, that late ones do not start in.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        policies: Policies,
        cache: KVCache,
        lengths: OutputLengths,
        step_budget: StepBudget,
        running: RunningSet,
        spare_rows: int,
        kept_rows: int,
    ) -> None:
        self._config = config
        self._policies = policies
        self._cache = cache
        self._lengths = lengths
        self._max_decodes = step_budget.max_decodes()
        self._most_with_batch = config.max_num_seqs - spare_rows
        self._most_with_late = min(self._max_decodes, config.max_num_seqs) - kept_rows
        self._low_watermark = int(cache.num_usable * config.low_watermark)
        self._running = running
        size = cache.page_size
        tokens, growth, batch = running.footprint.needs()
        self._tokens = np.ceil(tokens / size) * size
        self._growth = config.growth_reserve * growth
        self._batch = batch
        self._bound = float(self._tokens.sum() + self._growth.sum())  # of what is needed if none ever ended
        self._num_full = cache.windows.count(None)
        # The same in each group of layers with a window: a sequence has no more there than the pages that its window touches.
        self._caps = [touched_pages(window, size) * size for window in cache.windows if window is not None]
        self._capped = [float(np.minimum(self._tokens + self._growth, cap).sum()) for cap in self._caps]
        self._interactive = len(batch) - int(batch.sum())

    def started(self, sequence: Sequence) -> None:
        tokens, growth = self._needs_of(sequence)
        self._tokens = np.append(self._tokens, tokens)
        self._growth = np.append(self._growth, growth)
        self._batch = np.append(self._batch, sequence.batch)
        self._bound += tokens + growth
        self._capped = [bound + min(tokens + growth, cap) for bound, cap in zip(self._capped, self._caps, strict=True)]
        self._interactive += not sequence.batch

    def verdict(self, sequence: Sequence, match: PrefixMatch) -> Verdict:
        """Whether the sequence may start with the pages of `match`.

        A sequence that has the machine to itself may always start: requests that can never fit were refused when they came.
        """
        if not len(self._running):
            return Verdict.START if self._cache.fits(match, len(sequence.tokens), spare=0) else Verdict.ROOM
        if not self._class_allows(sequence, match):
            return Verdict.CLASS
        if not self._tenant_allows(sequence, match) or (sequence.late and self._interactive >= self._most_with_late):
            return Verdict.TENANT
        if not self.rows_allow(sequence) or not self._cache.fits(match, len(sequence.tokens), spare=self._low_watermark):
            return Verdict.ROOM
        missing = self._missing_pages(sequence, len(match.pages) - match.pages.count(NULL_PAGE))
        return Verdict.START if missing + self._low_watermark <= self._cache.num_free else Verdict.ROOM

    def rows_allow(self, sequence: Sequence) -> bool:
        """Whether the interactive sequences that run keep their time between tokens."""
        return self.pace_allows(sequence) and (not sequence.batch or len(self._running) < self._most_with_batch)

    def pace_allows(self, sequence: Sequence) -> bool:
        """Whether so many rows may decode together, as far as their time between tokens goes."""
        if sequence.batch:
            return not self._interactive or len(self._running) < self._max_decodes
        return self._interactive < self._max_decodes

    def _missing_pages(self, sequence: Sequence, held: int) -> int:
        """Pages more than now that are needed at the worst moment, if the sequence starts with `held` pages.

        The worst moments are those just before an output ends: all that are no closer to their end have grown as far by then.
        """
        tokens, growth = self._needs_of(sequence)
        size = self._cache.page_size
        now = (self._running.num_pages + held) * size
        bound = self._in_all_groups(self._bound + tokens + growth, tokens + growth)
        if bound <= now + (self._cache.num_free - self._low_watermark) * size:  # even if none ever ended
            return -(-max(0, int(bound) - now) // size)
        others = self._growth if sequence.batch else np.where(self._batch, 0.0, self._growth)
        all_tokens, all_growth = np.append(self._tokens, tokens), np.append(others, growth)
        longest_first = np.argsort(-all_growth, kind="stable")
        alive = np.arange(1, len(all_tokens) + 1)
        needed = np.cumsum(all_tokens[longest_first]) + alive * all_growth[longest_first]
        most = max(float(needed.max()), float(all_tokens.sum()))
        return -(-max(0, int(self._in_all_groups(most, tokens + growth)) - now) // size)

    def _in_all_groups(self, most: float, new: float) -> float:
        """Tokens of the pages of all groups of layers, if `most` are needed without a window, `new` of them by the sequence."""
        total = self._num_full * most
        for bound, cap in zip(self._capped, self._caps, strict=True):  # a step's own tokens are held beside the windows
            total += min(most, bound + min(new, cap) + self._config.max_num_batched_tokens)
        return total

    def _needs_of(self, sequence: Sequence) -> tuple[int, float]:
        """Tokens that the pages for its tokens hold, and tokens it is expected to grow by, as far as they are reserved."""
        size = self._cache.page_size
        tokens = -(-len(sequence.tokens) // size) * size
        return tokens, self._config.growth_reserve * self._lengths.remaining(sequence.request, sequence.num_output)

    def _class_allows(self, sequence: Sequence, match: PrefixMatch) -> bool:
        """Whether the sequence's class may have one more; its first one may always start."""
        service_class = sequence.service_class
        share = self._policies.of_class(service_class).kv_share
        if share == 1.0:
            return True
        mine = [one.pages for one in self._running.sequences if one.service_class is service_class]
        held = self._cache.num_different(mine)
        needed = self._cache.pages_taken(match, len(sequence.tokens))
        return not held or held + needed <= share * self._cache.num_usable

    def _tenant_allows(self, sequence: Sequence, match: PrefixMatch) -> bool:
        """Whether the sequence's tenant may have one more: within its quota, or leaving headroom, and never above its cap."""
        tenant, cache = sequence.request.tenant, self._cache
        policy = self._policies.of_tenant(tenant)
        if policy.kv_share == 1.0:
            return True
        needed = cache.pages_taken(match, len(sequence.tokens))
        owned = cache.tenant_pages(tenant) + needed
        if owned > policy.kv_cap * cache.num_usable:
            return False
        slots = self._config.max_num_seqs
        rows = self._running.rows_of(tenant) + 1
        if owned <= policy.kv_share * cache.num_usable and rows <= max(1.0, policy.kv_share * slots):
            return True
        pages_left, rows_left = cache.num_free - needed, slots - len(self._running) - 1
        return pages_left >= policy.burst_headroom * cache.num_usable and rows_left >= policy.burst_headroom * slots
