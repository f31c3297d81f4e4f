"""What each tenant has in the KV cache: pages it allocated, its quota, and counters of hits and evictions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from jaxserve.cache.eviction import MultiQueue

SHARED_TENANT = ""  # whoever names none; takes over the counters of tenants that are forgotten
MAX_IDLE = 1024


@dataclass(slots=True)
class CacheCounters:
    """What the prefix cache did for a tenant.

    Attributes:
        queried: tokens of sequences that began.
        hits: tokens of those that were in the cache.
        evicted: cached pages of the tenant that were used for something else.
    """

    queried: int = 0
    hits: int = 0
    evicted: int = 0

    @property
    def misses(self) -> int:
        return self.queried - self.hits


@dataclass(slots=True, eq=False)
class Account:
    """One tenant's pages.

    Attributes:
        quota: pages, referenced and cached, beyond which its own cached pages are evicted first; None for no limit.
        queue: its free cached pages in eviction order; only with a quota.
        pages: pages it allocated that are referenced or free but cached.
        cached: the free ones of them.
    """

    name: str
    quota: int | None
    queue: MultiQueue | None
    pages: int = 0
    cached: int = 0
    counters: CacheCounters = field(default_factory=CacheCounters)

    @property
    def referenced(self) -> int:
        return self.pages - self.cached


def count_eviction(owner: Account, page: int, digest: bytes) -> None:
    owner.counters.evicted += 1


class Tenants:
    """Accounts by tenant.

    Of tenants without pages the `max_idle` most recent are kept; the counters of others go to the shared tenant.

    Args:
        quota: pages of a tenant, None for no limit; asked when a tenant is new.
        lifetime: of pages on a level of the eviction order.
        max_idle: tenants without pages to remember.
    """

    def __init__(self, quota: Callable[[str], int | None], lifetime: int, max_idle: int = MAX_IDLE) -> None:
        self._quota = quota
        self._lifetime = lifetime
        self._max_idle = max_idle
        self._accounts: dict[str, Account] = {}
        self._idle: OrderedDict[str, Account] = OrderedDict()  # no pages; longest idle first
        self._over: OrderedDict[Account, None] = OrderedDict()  # beyond their quota with something to evict; longest so first
        self._shared = self._accounts[SHARED_TENANT] = self._new(SHARED_TENANT)

    def account(self, name: str) -> Account:
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = self._new(name)
            self._set_idle(account)
        return account

    def pages(self, name: str) -> int:
        """Referenced pages that the tenant allocated; 0 for a tenant that is not known."""
        account = self._accounts.get(name)
        return 0 if account is None else account.referenced

    def count_query(self, name: str, queried: int, hits: int) -> None:
        account = self.account(name)
        account.counters.queried += queried
        account.counters.hits += hits
        if name in self._idle:
            self._idle.move_to_end(name)

    def counters(self) -> dict[str, CacheCounters]:
        """A copy of every known tenant's counters."""
        return {name: replace(account.counters) for name, account in self._accounts.items()}

    def add_pages(self, account: Account, count: int) -> None:
        if account.pages == 0 and count:
            self._idle.pop(account.name, None)
        account.pages += count
        if account.quota is not None:
            self._note_over(account)

    def remove_page(self, account: Account) -> None:
        account.pages -= 1
        if account.quota is not None:
            self._note_over(account)
        if account.pages == 0 and account is not self._shared:
            self._set_idle(account)

    def add_cached(self, account: Account, page: int, worth: int, now: int) -> None:
        account.cached += 1
        if account.queue is not None:
            account.queue.push(page, worth, now)
            self._note_over(account)

    def remove_cached(self, account: Account, page: int) -> None:
        account.cached -= 1
        if account.queue is not None:
            account.queue.remove(page)
            self._note_over(account)

    def queue_to_evict(self, account: Account) -> MultiQueue | None:
        """Whose cached pages go first when this tenant needs a page; None if quotas have no say.

        Its own if it has any and the page would take it beyond its quota, else those of the tenant longest beyond its own.
        """
        if account.quota is not None and account.cached and account.pages >= account.quota:
            return account.queue
        return next(iter(self._over)).queue if self._over else None

    def check(self, owners: Iterable[tuple[Account | None, bool]]) -> None:
        """Assert that accounts match what pages say: the owner of each, and whether it is free."""
        pages: dict[Account, list[int]] = {}
        for owner, is_free in owners:
            if owner is not None:
                counts = pages.setdefault(owner, [0, 0])
                counts[0] += 1
                counts[1] += is_free
        for account in self._accounts.values():
            assert [account.pages, account.cached] == pages.pop(account, [0, 0]), f"pages of {account.name!r} are miscounted"
            assert account.queue is None or len(account.queue) == account.cached, f"{account.name!r}'s queue is not its pages"
            over = account.quota is not None and account.cached > 0 and account.pages > account.quota
            assert over == (account in self._over), f"{account.name!r} is wrongly taken for over or under its quota"
            idle = account.pages == 0 and account is not self._shared
            assert idle == (account.name in self._idle), f"{account.name!r} is wrongly taken for idle or busy"
        assert not pages, "a page's owner has no account"
        assert len(self._idle) <= self._max_idle, "too many idle tenants are remembered"

    def _new(self, name: str) -> Account:
        quota = self._quota(name)
        return Account(name, quota, None if quota is None else MultiQueue(self._lifetime))

    def _set_idle(self, account: Account) -> None:
        """Remember a tenant without pages, and forget the one that is idle longest if there are too many."""
        self._idle[account.name] = account
        if len(self._idle) > self._max_idle:
            name, oldest = self._idle.popitem(last=False)
            del self._accounts[name]
            self._shared.counters.queried += oldest.counters.queried
            self._shared.counters.hits += oldest.counters.hits
            self._shared.counters.evicted += oldest.counters.evicted

    def _note_over(self, account: Account) -> None:
        assert account.quota is not None
        if account.cached and account.pages > account.quota:
            self._over.setdefault(account)
        else:
            self._over.pop(account, None)
