"""A scheduler plays the policy it is given; what comes out of it is the same tokens, sooner or later."""

from jaxserve.cache.swap import SwapSpace
from jaxserve.scheduler.policy import Policy, Victim, cheapest
from tests.support.bench import BATCH, Bench, request


def alone(name, size):
    """The tokens of a request that has everything to itself."""
    bench = Bench(budget=100)
    bench.add(request(name, size, 8))
    bench.run(60)
    return bench.tokens[name]


def test_nobody_starts_unless_the_policy_says_so():
    """Batches of two: the third waits until both have ended, though there is a row for it."""
    asked = []

    def pairs(running, waiting, started):
        asked.append((running, waiting, started))
        return running == 0 or started % 2 == 1

    bench = Bench(policy=Policy(may_start=pairs))
    bench.add(request("a", 3, 2), request("b", 3, 4), request("c", 3, 2))
    assert [set(rows) for rows in bench.run(20)] == [{"a", "b"}, {"a", "b"}, {"b"}, {"b"}, {"c"}, {"c"}]
    assert asked[:3] == [(0, 3, 0), (1, 2, 1), (2, 1, 2)]


def test_the_order_of_tenants():
    """x has had much work and y none: y is next by work, x by arrival."""
    for policy, first in ((Policy(), "y1"), (Policy(order=lambda first, work: first.request.arrival), "x2")):
        bench = Bench(max_num_seqs=1, policy=policy)
        bench.add(request("x1", 12, 2, tenant="x"), request("x2", 3, 2, tenant="x"))
        bench.step()
        bench.clock.advance(1.0)
        bench.add(request("y1", 3, 2, tenant="y", arrival=bench.clock.now()))
        names = [name for rows in bench.run(20) for name in rows]
        assert next(name for name in names if name != "x1") == first


def test_the_victim():
    for key, name in ((lambda one: (one.sequence.order,), "b"), (lambda one: (-one.sequence.order,), "c"), (cheapest, "b")):
        bench = Bench(
            num_pages=9, budget=100, low_watermark=0.0, high_watermark=0.0, prefix_caching=False, policy=Policy(victim=key)
        )
        bench.add(request("a", 12, 8), request("b", 9, 8), request("c", 8, 8))
        bench.step()
        bench.step()
        assert [event.id for event in bench.preemptions] == [name]
        bench.run(60)
        assert all(bench.tokens[each] == alone(each, size) for each, size in (("a", 12), ("b", 9), ("c", 8)))


def test_what_a_victim_is():
    seen: list[Victim] = []

    def note(victim):
        seen.append(victim)
        return cheapest(victim)

    bench = Bench(
        num_pages=9, budget=100, low_watermark=0.0, high_watermark=0.0, prefix_caching=False, policy=Policy(victim=note)
    )
    bench.add(request("a", 12, 8), request("b", 9, 8), request("c", 8, 8, service_class=BATCH))
    bench.step()
    bench.step()
    assert [(one.sequence.request.id, one.pages, one.over_quota) for one in seen[:2]] == [("b", 3, False), ("c", 2, False)]
    assert [event.id for event in bench.preemptions] == ["c"]


def test_swap_or_recompute():
    for swap in (True, False):
        seconds: list[tuple[float, float]] = []

        def choose(out, again, swap=swap, seconds=seconds):
            seconds.append((out, again))
            return swap

        bench = Bench(
            num_pages=7,
            budget=100,
            low_watermark=0.0,
            high_watermark=0.0,
            prefix_caching=False,
            swap=SwapSpace(20, 0.5),
            swap_slots=20,
            policy=Policy(swap=choose),
        )
        bench.add(*(request(name, 8, 8) for name in "abc"))
        bench.step(1.0)
        bench.step(1.0)
        assert seconds[0][0] == 2 * 2 * 0.5  # two pages, out and in
        assert bench.preemptions[0].swapped is swap
        bench.run(60, 1.0)
        assert all(bench.tokens[name] == alone(name, 8) for name in "abc")
