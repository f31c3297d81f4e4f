"""Fairness between tenants: virtual counters of token-work.

Every tenant has a counter of the work done for it, divided by its weight; of the tenants that wait, the one with the smallest
counter is next. One that begins to wait is lifted to the virtual time: what a tenant of weight 1 that always waited would have
got in equal shares. So neither time away nor asking for little earns credit, and tenants that keep coming cannot hold up one that
had its share. While nobody waits, virtual time keeps up with the busiest tenant: what nobody else wanted is not held against it.
Work is charged when it is done, with its actual size; computing again what a preemption lost is not charged.
(Virtual Token Counter: Sheng et al., Fairness in Serving Large Language Models, OSDI 2024, https://arxiv.org/abs/2401.00588; with
the virtual time of generalized processor sharing: Parekh and Gallager, IEEE/ACM Transactions on Networking 1(3), 1993.)
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxserve.config.policies import Policies

MAX_IDLE_TENANTS = 10_000  # remembered; beyond it, the debts of those that are away are forgiven


class TokenWork:
    """Counters of tenants.

    Args:
        prefill_price, decode_price: work of one prompt token and of one output token.
    """

    def __init__(self, policies: Policies, prefill_price: float, decode_price: float) -> None:
        self._policies = policies
        self._prefill_price = prefill_price
        self._decode_price = decode_price
        self._counters: dict[str, float] = {}
        self._active: dict[str, int] = {}  # tenant -> unfinished sequences
        self._waiting: dict[str, int] = {}  # tenant -> sequences in the queue
        self._waiting_weight = 0.0
        self._virtual_time = 0.0

    def counter(self, tenant: str) -> float:
        """Weighted work done for the tenant."""
        return self._counters.get(tenant, self._virtual_time)

    @property
    def active(self) -> dict[str, int]:
        """Unfinished sequences of every tenant that has any."""
        return self._active

    def enter(self, tenant: str) -> None:
        self._active[tenant] = self._active.get(tenant, 0) + 1

    def leave(self, tenant: str) -> None:
        self._active[tenant] -= 1
        if self._active[tenant] == 0:
            del self._active[tenant]
            if self.counter(tenant) <= self._virtual_time or len(self._counters) > MAX_IDLE_TENANTS + len(self._active):
                self._counters.pop(tenant, None)

    def num_waiting(self, tenant: str) -> int:
        return self._waiting.get(tenant, 0)

    def wait(self, tenant: str) -> None:
        if tenant not in self._waiting:
            if self._waiting:  # work for tenants that run on without waiting must not put a newcomer behind a whole backlog
                self._virtual_time = min(self._virtual_time, max(map(self.counter, self._waiting)))
            self._counters[tenant] = max(self.counter(tenant), self._virtual_time)
            self._waiting[tenant] = 0
            self._waiting_weight += self.weight(tenant)
        self._waiting[tenant] += 1

    def wait_no_more(self, tenant: str) -> None:
        self._waiting[tenant] -= 1
        if self._waiting[tenant] == 0:
            del self._waiting[tenant]
            self._waiting_weight = self._waiting_weight - self.weight(tenant) if self._waiting else 0.0

    def charge(self, tenant: str, prompt: int, output: int) -> None:
        work = self.work(prompt, output)
        counter = self._counters[tenant] = self.counter(tenant) + work / self.weight(tenant)
        if self._waiting:
            self._virtual_time += work / self._waiting_weight
        else:
            self._virtual_time = max(self._virtual_time, counter)

    def work(self, prompt: float, output: float) -> float:
        return self._prefill_price * prompt + self._decode_price * output

    def weight(self, tenant: str) -> float:
        return self._policies.of_tenant(tenant).weight


class PrefillTokens:
    """One step's tokens for prompts, of which some tenants' reserve is left to them.

    Args:
        eager: prompt tokens that could be computed now, by tenant.
    """

    def __init__(self, policies: Policies, budget: int, eager: Mapping[str, float]) -> None:
        self.left = budget
        self._budget = budget
        self._withheld = 0
        self._reserved: dict[str, int] = {}
        if any(policy.prefill_reserve for policy in policies.tenants.values()):
            shares = {tenant: policies.of_tenant(tenant).prefill_reserve for tenant in eager}
            total = max(sum(shares.values()), 1.0)  # "*" may give a reserve to any number of tenants
            self._reserved = {name: int(min(budget * share / total, eager[name])) for name, share in shares.items()}

    def left_for(self, tenant: str) -> int:
        if not self._reserved:
            return self.left
        others = sum(tokens for other, tokens in self._reserved.items() if other != tenant)
        return max(self.left - others, min(self._reserved.get(tenant, 0), self.left))

    @property
    def taken(self) -> int:
        return self._budget - self.left - self._withheld

    def bound(self, most: int) -> None:
        """Until `release` the step gets no larger than so many tokens, or than it is."""
        withheld = max(0, self.left - max(0, most - self.taken))
        self.left -= withheld
        self._withheld += withheld

    def release(self) -> None:
        """Nobody claims what is left of the reserves, and there is no bound any more: everybody may have what is left."""
        self._reserved = {}
        self.left += self._withheld
        self._withheld = 0

    def take(self, tenant: str, count: int) -> None:
        self.left -= count
        if tenant in self._reserved:
            self._reserved[tenant] = max(0, self._reserved[tenant] - count)
