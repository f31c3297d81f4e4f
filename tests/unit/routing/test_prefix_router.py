"""PrefixRouter: prompts go where they were computed before, and nobody gets too much."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from jaxserve.errors import ConfigError
from jaxserve.routing.prefix_router import PrefixRouter
from jaxserve.routing.prefix_settings import PrefixSettings
from jaxserve.routing.router import ReplicaLoad, Router
from jaxserve.types import ServiceClass
from tests.unit.routing.support import pages, request

BATCH, PAID = ServiceClass.BATCH, ServiceClass.INTERACTIVE_PAID


def fleet(replicas: int = 8, weights: dict[int, float] | None = None, **settings: Any) -> PrefixRouter:
    router = PrefixRouter(PrefixSettings(**settings))
    for number in range(replicas):
        router.join(f"replica {number}", (weights or {}).get(number, 1.0))
    return router


def sent(router: Router, name: str, *parts: tuple[str, int], now: float = 0.0, **more: Any) -> str:
    """Choose, and let it end at once."""
    chosen = router.choose(request(name, *parts, **more), now)
    assert chosen is not None
    router.ended(name, now)
    return chosen


def test_a_conversation_stays_where_it_began() -> None:
    router = fleet()
    first = sent(router, "1", ("system", 4), ("alice", 4))
    assert {sent(router, str(turn), ("system", 4), ("alice", 4 + turn)) for turn in range(2, 9)} == {first}


def test_prompts_of_one_system_prompt_go_to_one_replica_whatever_its_length() -> None:
    for length in (1, 2, 3, 7, 20):
        router = fleet()
        chosen = {sent(router, str(user), ("system", length), (f"user {user}", 2)) for user in range(20)}
        assert len(chosen) == 1, length


def test_a_beginning_that_all_share_does_not_make_them_one() -> None:
    """A page of sixty is shared with everybody: worth less than an even fleet."""
    router = fleet(16)
    homes = {
        system: {sent(router, f"{system} {user}", ("header", 1), (system, 40), (f"{system} {user}", 20)) for user in range(5)}
        for system in map(str, range(40))
    }
    assert all(len(chosen) == 1 for chosen in homes.values())
    assert len(set.union(*homes.values())) > 10


def test_a_page_shared_by_two_is_not_worth_a_way() -> None:
    router = fleet(16, slack=0.0)
    first = sent(router, "1", ("header", 1), ("one", 40))
    assert {sent(router, f"{number}", ("header", 1), (f"other {number}", 40)) for number in range(2, 20)} != {first}


def test_the_bound_holds_and_what_is_too_much_goes_to_the_next_home() -> None:
    router, slack, grain = fleet(4, slack=0.25, grain=700.0), 0.25, 700.0
    counts: Counter[str | None] = Counter()
    for number in range(200):
        counts[router.choose(request(str(number), ("system", 4), (f"user {number}", 1)), 0.0)] += 1
        loads = [router.work(f"replica {place}") for place in range(4)]
        assert max(loads) <= (1 + slack) * sum(loads) / 4 + grain + 700, "one request above, where none is below the bound"
    assert len(counts) == 4
    assert max(counts.values()) < 1.4 * 200 / 4 + 10
    for number in range(200):
        router.ended(str(number), 1.0)
    assert [router.work(f"replica {place}") for place in range(4)] == [0] * 4


def test_work_is_what_is_not_known_to_be_cached() -> None:
    router = fleet(1)
    router.choose(request("1", ("system", 4), ("a", 1)), 0.0)
    assert router.work("replica 0") == 5 * 128 + 1 + 2 * 10
    router.choose(request("2", ("system", 4), ("b", 1)), 0.0)
    router.ended("1", 0.0)
    assert router.work("replica 0") == 128 + 1 + 2 * 10
    router.started("2", 0.0)
    assert router.work("replica 0") == 2 * 10


def test_who_joins_takes_only_its_share_of_unknown_prompts() -> None:
    def homes(replicas: int) -> list[str]:
        router = fleet(replicas)
        return [sent(router, str(number), (f"prompt {number}", 4)) for number in range(1500)]

    moved = [new for old, new in zip(homes(10), homes(11), strict=True) if old != new]
    assert set(moved) == {"replica 10"}
    assert len(moved) / 1500 == pytest.approx(1 / 11, abs=0.03)


def test_known_prompts_do_not_move_to_who_joins() -> None:
    router = fleet(3)
    before = [sent(router, str(number), (f"prompt {number}", 4)) for number in range(100)]
    router.join("new")
    assert [sent(router, str(number), (f"prompt {number}", 4)) for number in range(100)] == before


def test_who_leaves_is_forgotten_and_others_keep_theirs() -> None:
    router = fleet(5)
    before = [sent(router, str(number), (f"prompt {number}", 4)) for number in range(100)]
    router.choose(request("running", ("prompt 0", 4)), 0.0)
    router.leave("replica 2")
    router.leave("replica 2")
    router.ended("running", 0.0)
    after = [sent(router, str(number), (f"prompt {number}", 4)) for number in range(100)]
    assert all(new == old for old, new in zip(before, after, strict=True) if old != "replica 2")
    assert "replica 2" not in after
    router.join("replica 2")
    assert router.work("replica 2") == 0


def test_two_routers_agree_on_what_they_do_not_know() -> None:
    one, other = fleet(9), fleet(9)
    for number in range(50):
        assert sent(one, str(number), (f"p{number}", 3)) == sent(other, str(number), (f"p{number}", 3))


def test_a_hot_prefix_is_on_several_replicas_before_they_are_full() -> None:
    """Half of the traffic, and so half of the replicas; the bound is far away."""
    router = fleet(8, slack=50.0, grain=500.0)
    counts: Counter[str] = Counter()
    for number in range(600):
        now = number / 10
        hot = number % 2 == 0
        chosen = router.choose(request(str(number), (("hot", 4) if hot else (f"cold {number}", 4)), (f"u{number}", 1)), now)
        assert chosen is not None
        if hot and number > 300:
            counts[chosen] += 1
        if number >= 40:
            router.ended(str(number - 40), now)
    assert 3 <= len(counts) <= 5
    assert min(counts.values()) > 10


def test_a_session_stays_while_there_is_room() -> None:
    router = fleet(8, grain=2000.0)
    first = sent(router, "1", ("a", 2), session="s", tenant="t")
    assert sent(router, "2", ("quite different", 2), session="s", tenant="t") == first
    others = {sent(router, f"{number}", (f"x{number}", 2), session="s", tenant=f"t{number}") for number in range(20)}
    assert len(others) > 3, "another tenant's session of the same name is another"
    for number in range(30):
        router.choose(request(f"load {number}", (f"load {number}", 1)), 0.0, [f"replica {n}" for n in range(8)][1:])
    router.choose(request("heavy", tokens=10**6), 0.0, {f"replica {number}" for number in range(8)} - {first})
    moved = sent(router, "3", ("a", 3), session="s", tenant="t")
    assert moved != first
    assert sent(router, "4", ("other", 3), session="s", tenant="t") == moved


def test_a_session_of_a_replica_that_left_goes_on_elsewhere() -> None:
    router = fleet(2)
    first = sent(router, "1", ("a", 2), session="s")
    router.leave(first)
    assert sent(router, "2", ("a", 2), session="s") != first


def test_excluded_ones_get_nothing() -> None:
    router = fleet(3)
    first = sent(router, "1", ("a", 4))
    assert router.choose(request("2", ("a", 4)), 0.0, {first}) not in (None, first)
    assert router.choose(request("3", ("a", 4)), 0.0, {f"replica {number}" for number in range(3)}) is None
    assert router.choose(request("4", ("a", 4)), 0.0, {"never heard of"}) == first
    assert PrefixRouter().choose(request("1", ("a", 4)), 0.0) is None


def test_a_deadline_that_would_pass_at_home_is_kept_elsewhere() -> None:
    def chosen(deadline: float) -> tuple[str, str]:
        router = fleet(4, grain=1e6)
        for number in range(4):  # it learns that 1000 of work take about a second
            router.choose(request(f"learn {number}", (f"learn {number}", 7)), 0.0)
            router.ended(f"learn {number}", 1.0)
        home = sent(router, "home", ("a", 4), now=1.0)
        for number in range(20):
            router.choose(request(f"{number}", ("a", 4), (f"{number}", 4)), 1.0)
        return home, sent(router, "last", ("a", 4), now=1.0, deadline=deadline)

    home, patient = chosen(math.inf)
    assert patient == home
    home, hurried = chosen(3.0)
    assert hurried != home
    home, late = chosen(0.5)
    assert late != home, "too late anywhere: where it ends first"


def test_batch_leaves_interactive_ones_their_homes() -> None:
    router = fleet(4, slack=0.25, grain=2000.0)
    home = sent(router, "0", ("a", 4))
    for number in range(300):
        router.choose(request(f"batch {number}", ("a", 4), (f"b{number}", 2), service_class=BATCH), 0.0)
    assert {sent(router, f"{number}", ("a", 4), (f"i{number}", 1), service_class=PAID) for number in range(30)} == {home}


def test_faster_replicas_get_more() -> None:
    router = fleet(3, weights={2: 2.0}, grain=500.0)
    counts = Counter(router.choose(request(str(number), (f"p{number}", 2)), 0.0) for number in range(400))
    assert counts["replica 2"] / 400 == pytest.approx(0.5, abs=0.1)


def test_prompts_without_a_page_go_where_the_least_is() -> None:
    router = fleet(3)
    assert {router.choose(request(str(number), tokens=20), 0.0) for number in range(3)} == {f"replica {n}" for n in range(3)}


def test_tenants_know_nothing_of_each_other() -> None:
    """The same text under another root is another prompt, wherever the first one is."""
    router = fleet(16)
    mine = [sent(router, f"{number}", (f"p{number}", 4), root=b"mine", tenant="mine") for number in range(60)]
    theirs = [sent(router, f"{number}", (f"p{number}", 4), root=b"theirs", tenant="theirs") for number in range(60)]
    fresh = fleet(16)
    assert theirs == [sent(fresh, f"{number}", (f"p{number}", 4), root=b"theirs", tenant="theirs") for number in range(60)]
    assert sum(one == other for one, other in zip(mine, theirs, strict=True)) < 15


def test_what_replicas_say_wins() -> None:
    router = fleet(8)
    home = sent(router, "1", ("a", 6))
    other = next(f"replica {number}" for number in range(8) if f"replica {number}" != home)
    router.stored(other, pages(("a", 6), ("b", 6)))
    assert sent(router, "2", ("a", 6), ("b", 6)) == other
    router.removed(other, pages(("a", 6), ("b", 6)))
    router.cleared(home)
    assert sent(fleet(8), "3", ("a", 6)) == home
    router.stored("never heard of", pages(("a", 6)))
    router.removed("never heard of", pages(("a", 6)))
    router.cleared("never heard of")
    router.observe("never heard of", ReplicaLoad(pages_total=3), 0.0)


def test_only_every_so_many_pages_are_remembered_and_all_that_replicas_say() -> None:
    hashes = pages(("a", 64))
    small: dict[str, Any] = {"pages": hashes, "page_size": 16, "tokens": 1025}
    router = fleet(1)
    router.choose(request("1", **small), 0.0)
    assert len(router._knowledge) == 8
    router.stored("replica 0", hashes)
    assert len(router._knowledge) == 64
    router.observe("replica 0", ReplicaLoad(pages_total=32), 0.0)
    router.stored("replica 0", hashes)
    assert len(router._knowledge) <= 32


def test_all_that_a_replica_says_at_first_is_remembered_whatever_was_known_of_its_room() -> None:
    hashes = pages(("a", 64))
    router = fleet(1)
    router.choose(request("1", pages=hashes, page_size=16, tokens=1025), 0.0)
    router.observe("replica 0", ReplicaLoad(pages_total=64), 0.0)
    router.stored("replica 0", hashes)
    assert len(router._knowledge) == 64
    router.observe("replica 0", ReplicaLoad(pages_total=64), 0.0)
    router.stored("replica 0", hashes)
    assert len(router._knowledge) == 64


def test_no_more_is_known_than_caches_hold() -> None:
    router = fleet(1)
    router.choose(request("0", ("first", 1)), 0.0)
    router.observe("replica 0", ReplicaLoad(pages_total=40), 0.0)
    for number in range(30):
        router.choose(request(str(number), (f"p{number}", 5)), 0.0)
    assert len(router._knowledge) <= 40


def test_sending_again_is_one_request() -> None:
    router = fleet(2)
    router.choose(request("1", ("a", 4)), 0.0)
    router.choose(request("1", ("a", 4)), 1.0)
    router.ended("1", 2.0)
    assert router.work("replica 0") == router.work("replica 1") == 0
    with pytest.raises(KeyError):
        router.work("replica 2")


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf])
def test_impossible_weights_are_refused(weight: float) -> None:
    router = fleet(0)
    with pytest.raises(ValueError, match="weight must be above 0 and finite"):
        router.join("a", weight)
    assert router.choose(request("1", ("a", 4)), 0.0) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slack": math.nan}, "slack must be at least 0 and finite, got nan"),
        ({"grain": -1.0}, "grain must be at least 0"),
        ({"landmark_tokens": 0}, "landmark_tokens must be at least 1"),
        ({"heat_seconds": 0.0}, "heat_seconds must be above 0"),
        ({"grain": 0.0}, "grain must be above 0"),
        ({"least_share": 1.5}, "least_share must be at most 1"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PrefixSettings(**settings)
