"""Whether a waiting sequence may start now: rows within the ITL target, pages now and later, tenants' and classes' shares.

Pages are promised with foresight: a sequence starts if, with the output lengths expected, the most pages ever needed by what runs
and it fit the pool; what batch sequences will need does not keep an interactive one waiting. Where expectations are wrong,
preemption corrects them. (Gong et al., Past-Future Scheduler for LLM Serving under SLA Guarantees, ASPLOS 2025,
https://arxiv.org/abs/2507.10150.)
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from jaxserve.cache.kv_cache import KVCache, PrefixMatch
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.policies import Policies
from jaxserve.scheduler.estimates import OutputLengths
from jaxserve.scheduler.pace import Pace
from jaxserve.scheduler.request import Sequence


class Verdict(Enum):
    """START it; or nothing of its TENANT or its CLASS may start now, others may; or there is no ROOM."""

    START = "start"
    TENANT = "tenant"
    CLASS = "class"
    ROOM = "room"


@dataclass(slots=True)
class _Needs:
    """What a group of running sequences has and will need, in tokens.

    Attributes:
        tokens, growth: of each sequence: those it has, and those still expected.
        total: their sum, for a bound that needs no sorting.
    """

    tokens: list[float] = field(default_factory=list)
    growth: list[float] = field(default_factory=list)
    total: float = 0.0

    def add(self, tokens: float, growth: float) -> None:
        """One more sequence."""
        self.tokens.append(tokens)
        self.growth.append(growth)
        self.total += tokens + growth


class Capacity:
    """Room in one step; made anew for each that admits.

    Args:
        config: watermarks and reserves.
        policies: shares of tenants and classes.
        cache: the pages.
        lengths: output lengths to expect.
        pace: rows that may decode together.
        running: what runs.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        policies: Policies,
        cache: KVCache,
        lengths: OutputLengths,
        pace: Pace,
        running: ListOf[Sequence],
    ) -> None:
        self._config = config
        self._policies = policies
        self._cache = cache
        self._lengths = lengths
        self._max_decodes = pace.max_decodes()
        self._low_watermark = int(cache.num_usable * config.low_watermark)
        self._running = list(running)
        self._interactive = _Needs()
        self._batch = _Needs()
        self._capacity = 0
        self._tenant_rows: dict[str, int] = {}
        for sequence in running:
            self._count(sequence)

    def started(self, sequence: Sequence) -> None:
        """Count a sequence that was admitted."""
        self._running.append(sequence)
        self._count(sequence)

    def verdict(self, sequence: Sequence, match: PrefixMatch) -> Verdict:
        """Whether the sequence may start with the pages of `match`.

        A sequence that has the machine to itself may always start: requests that can never fit were refused when they came.
        """
        if not self._running:
            return Verdict.START if self._cache.fits(match, len(sequence.tokens), spare=0) else Verdict.ROOM
        if not self._class_allows(sequence, match):
            return Verdict.CLASS
        if not self._tenant_allows(sequence, match):
            return Verdict.TENANT
        if not self.rows_allow(sequence) or not self._cache.fits(match, len(sequence.tokens), spare=self._low_watermark):
            return Verdict.ROOM
        missing = self._missing_pages(sequence, match.num_tokens)
        return Verdict.START if missing + self._low_watermark <= self._cache.num_free else Verdict.ROOM

    def rows_allow(self, sequence: Sequence) -> bool:
        """Whether the interactive sequences that run keep their time between tokens."""
        interactive = len(self._interactive.tokens)
        if not sequence.batch:
            return interactive < self._max_decodes
        return not interactive or len(self._running) < self._max_decodes

    def _count(self, sequence: Sequence) -> None:
        needs = self._batch if sequence.batch else self._interactive
        needs.add(self._rounded(sequence), self._growth(sequence))
        self._capacity += sequence.capacity
        tenant = sequence.request.tenant
        self._tenant_rows[tenant] = self._tenant_rows.get(tenant, 0) + 1

    def _missing_pages(self, sequence: Sequence, held: int) -> int:
        """Pages more than now that are needed at the worst moment, if the sequence starts with `held` tokens in the cache.

        The worst moments are those just before an output ends: all that are no closer to their end have grown as far by then.
        """
        tokens, growth = self._rounded(sequence), self._growth(sequence)
        now = self._capacity + held
        bound = self._interactive.total + self._batch.total + tokens + growth
        if bound <= now + (self._cache.num_free - self._low_watermark) * self._cache.page_size:  # even if none ever ended
            return self._cache.pages_for(max(0, int(bound) - now))
        batch_growth = self._batch.growth if sequence.batch else [0.0] * len(self._batch.growth)
        all_tokens = np.array([*self._interactive.tokens, *self._batch.tokens, tokens], np.float64)
        all_growth = np.array([*self._interactive.growth, *batch_growth, growth], np.float64)
        longest_first = np.argsort(-all_growth, kind="stable")
        alive = np.arange(1, len(all_tokens) + 1)
        needed = np.cumsum(all_tokens[longest_first]) + alive * all_growth[longest_first]
        most = max(float(needed.max()), float(all_tokens.sum()))
        return self._cache.pages_for(max(0, int(most) - now))

    def _rounded(self, sequence: Sequence) -> int:
        """Tokens that the pages for the sequence's tokens hold."""
        return self._cache.pages_for(len(sequence.tokens)) * self._cache.page_size

    def _growth(self, sequence: Sequence) -> float:
        """Tokens that the sequence is expected to grow by, as far as they are reserved."""
        return self._config.growth_reserve * self._lengths.remaining(sequence.request, sequence.num_output)

    def _class_allows(self, sequence: Sequence, match: PrefixMatch) -> bool:
        """Whether the sequence's class may have one more; its first one may always start."""
        service_class = sequence.request.service_class
        share = self._policies.of_class(service_class).kv_share
        if share == 1.0:
            return True
        mine = [one.pages for one in self._running if one.request.service_class is service_class]
        shared = {page for pages in mine for page in pages.pages[: pages.num_shared]}
        held = len(shared) + sum(len(pages.pages) - pages.num_shared for pages in mine)
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
        rows = self._tenant_rows.get(tenant, 0) + 1
        if owned <= policy.kv_share * cache.num_usable and rows <= max(1.0, policy.kv_share * slots):
            return True
        pages_left, rows_left = cache.num_free - needed, slots - len(self._running) - 1
        return pages_left >= policy.burst_headroom * cache.num_usable and rows_left >= policy.burst_headroom * slots
