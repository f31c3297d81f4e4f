"""Whether a waiting sequence may start now: rows within the ITL target, pages now and later, tenants' and classes' shares.

Pages are promised with foresight: a sequence starts if, with the output lengths expected, the most pages ever needed by what runs
and it fit the pool. (Gong et al., Past-Future Scheduler for LLM Serving under SLA Guarantees, ASPLOS 2025,
https://arxiv.org/abs/2507.10150.) Where expectations are wrong, preemption corrects them.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from enum import Enum

import numpy as np

from jaxserve.cache.kv_cache import KVCache, PrefixMatch
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.policies import Policies, TenantPolicy
from jaxserve.scheduler.estimates import OutputLengths
from jaxserve.scheduler.pace import Pace
from jaxserve.scheduler.request import Sequence
from jaxserve.types import ServiceClass


class Verdict(Enum):
    """START it; SKIP its tenant in this class, for others may start; WAIT: there is no room, and those behind it wait too."""

    START = "start"
    SKIP = "skip"
    WAIT = "wait"


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
        self._rows = 0
        self._interactive_rows = 0
        self._tokens: list[float] = []
        self._remaining: list[float] = []
        self._capacity = 0
        self._class_tokens = dict.fromkeys(ServiceClass, 0)
        self._tenant_rows: dict[str, int] = {}
        for sequence in running:
            self.started(sequence)

    def started(self, sequence: Sequence) -> None:
        """Count a sequence that runs."""
        request = sequence.request
        self._rows += 1
        self._interactive_rows += request.service_class is not ServiceClass.BATCH
        self._tokens.append(len(sequence.tokens))
        self._remaining.append(self._growth(sequence))
        self._capacity += sequence.capacity
        self._class_tokens[request.service_class] += sequence.capacity
        self._tenant_rows[request.tenant] = self._tenant_rows.get(request.tenant, 0) + 1

    def verdict(self, sequence: Sequence, match: PrefixMatch) -> Verdict:
        """Whether the sequence may start with the pages of `match`.

        A sequence that has the machine to itself may always start: requests that can never fit were refused when they came.
        """
        if not self._rows:
            return Verdict.START if self._cache.fits(match, len(sequence.tokens), spare=0) else Verdict.WAIT
        if not self._share_allows(sequence, match):
            return Verdict.SKIP
        if not self._rows_allow(sequence) or not self._cache.fits(match, len(sequence.tokens), spare=self._low_watermark):
            return Verdict.WAIT
        missing = self._missing_pages(sequence, match.num_tokens)
        return Verdict.START if missing + self._low_watermark <= self._cache.num_free else Verdict.WAIT

    def _rows_allow(self, sequence: Sequence) -> bool:
        """Whether the interactive sequences that run keep their time between tokens."""
        if sequence.request.service_class is not ServiceClass.BATCH:
            return self._interactive_rows < self._max_decodes
        return not self._interactive_rows or self._rows < self._max_decodes

    def _missing_pages(self, sequence: Sequence, held: int) -> int:
        """Pages more than now that are needed at the worst moment, if the sequence starts with `held` tokens in the cache.

        The worst moments are those just before an output ends: all that are no closer to their end have grown as far by then.
        """
        tokens = np.array([*self._tokens, len(sequence.tokens)], np.float64)
        remaining = np.array([*self._remaining, self._growth(sequence)])
        longest_first = np.argsort(-remaining, kind="stable")
        alive = np.arange(1, len(tokens) + 1)
        growth = remaining[longest_first]
        needed = np.cumsum(tokens[longest_first]) + alive * growth
        most = max(float(needed.max()), float(tokens.sum()))
        return self._cache.pages_for(max(0, int(most) - self._capacity - held))

    def _growth(self, sequence: Sequence) -> float:
        """Tokens that the sequence is expected to grow by, as far as they are reserved."""
        return self._config.growth_reserve * self._lengths.remaining(sequence.request, sequence.num_output)

    def _share_allows(self, sequence: Sequence, match: PrefixMatch) -> bool:
        """Whether the sequence's class and tenant may have one more."""
        request, cache = sequence.request, self._cache
        needed = cache.pages_for(len(sequence.tokens)) - len(match.pages)
        class_share = self._policies.of_class(request.service_class).kv_share
        held = cache.pages_for(self._class_tokens[request.service_class])
        if held and held + needed > class_share * cache.num_usable:
            return False
        policy = self._policies.of_tenant(request.tenant)
        if policy.kv_share == 1.0:
            return True
        owned = cache.tenant_pages(request.tenant) + needed
        if owned > policy.kv_cap * cache.num_usable:
            return False
        rows = self._tenant_rows.get(request.tenant, 0) + 1
        within = owned <= policy.kv_share * cache.num_usable and rows <= max(1.0, policy.kv_share * self._config.max_num_seqs)
        return within or self._leaves_headroom(policy, needed)

    def _leaves_headroom(self, policy: TenantPolicy, needed: int) -> bool:
        """Whether a sequence beyond its tenant's quota leaves pages and rows free for others."""
        pages = self._cache.num_free - needed >= policy.burst_headroom * self._cache.num_usable
        return pages and self._config.max_num_seqs - self._rows - 1 >= policy.burst_headroom * self._config.max_num_seqs
