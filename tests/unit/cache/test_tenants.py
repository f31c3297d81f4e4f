"""Accounts of tenants: who is remembered, and whose pages go first."""

import pytest

from jaxserve.cache.tenants import CacheCounters, Tenants


def no_quota(tenant):
    return None


def test_an_account_is_opened_once_and_asks_for_its_quota_once():
    asked: list[str] = []
    tenants = Tenants(asked.append, lifetime=1)
    assert tenants.account("a") is tenants.account("a")
    assert tenants.pages("b") == 0
    assert asked == ["", "a"]


def test_misses_are_what_was_not_hit():
    assert CacheCounters(queried=10, hits=4).misses == 6


def test_tenants_idle_for_long_are_forgotten_and_their_counters_kept():
    tenants = Tenants(no_quota, lifetime=1, max_idle=2)
    for name in ("a", "b", "c"):
        tenants.count_query(name, 10, 4)
    assert tenants.counters() == {"": CacheCounters(10, 4), "b": CacheCounters(10, 4), "c": CacheCounters(10, 4)}
    tenants.account("b").counters.evicted += 3
    tenants.count_query("b", 1, 0)  # now c is idle for longest
    tenants.count_query("d", 1, 1)
    assert list(tenants.counters()) == ["", "b", "d"]
    tenants.count_query("e", 1, 1)
    assert tenants.counters()[""] == CacheCounters(31, 12, 3)
    tenants.check([])


def test_tenants_with_pages_and_the_shared_one_are_not_forgotten():
    tenants = Tenants(no_quota, lifetime=1, max_idle=1)
    busy = tenants.account("busy")
    tenants.add_pages(busy, 1)
    for name in ("a", "b", "c"):
        tenants.account(name)
    assert list(tenants.counters()) == ["", "busy", "c"]
    tenants.check([(busy, False)])
    tenants.remove_page(busy)
    assert list(tenants.counters()) == ["", "busy"]
    tenants.check([])


def test_no_pages_leave_a_tenant_idle():
    tenants = Tenants(no_quota, lifetime=1)
    tenants.add_pages(tenants.account("a"), 0)
    tenants.check([])
    assert tenants.pages("a") == 0


def test_the_tenant_that_is_beyond_its_quota_for_longest_gives_first():
    tenants = Tenants({"a": 1, "b": 1}.get, lifetime=9)
    first, second, other = tenants.account("a"), tenants.account("b"), tenants.account("c")
    assert tenants.queue_to_evict(other) is None
    for page, account in ((1, second), (2, first)):
        tenants.add_pages(account, 2)
        assert tenants.queue_to_evict(account) is not account.queue, "it has none that is free"
        tenants.add_cached(account, page, 0, 0)
    assert tenants.queue_to_evict(other) is second.queue
    assert tenants.queue_to_evict(first) is first.queue
    tenants.remove_cached(second, 1)
    assert tenants.queue_to_evict(other) is first.queue
    tenants.remove_page(first)
    assert tenants.queue_to_evict(other) is None, "at its quota is not beyond it"
    assert tenants.queue_to_evict(first) is first.queue, "but another page would be"
    tenants.check([(first, True), (second, False), (second, False)])


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [("pages", 3, "miscounted"), ("cached", 0, "miscounted"), ("quota", 0, "wrongly taken for over")],
)
def test_check_notices(attribute, value, message):
    tenants = Tenants({"a": 2}.get, lifetime=9)
    account = tenants.account("a")
    tenants.add_pages(account, 2)
    tenants.add_cached(account, 1, 0, 0)
    owners = [(None, True), (account, True), (account, False)]
    tenants.check(owners)
    setattr(account, attribute, value)
    with pytest.raises(AssertionError, match=message):
        tenants.check(owners)
