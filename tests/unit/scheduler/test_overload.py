"""Overloads: when they begin and end, who is refused, at the gate too, and who waits on."""

from contextlib import suppress

import pytest

from jaxserve.errors import OverloadedError
from jaxserve.scheduler.load_shedding import Overload
from tests.support.bench import BATCH, FREE, Bench, family, request

SECONDS = 0.1  # of a step


def crowded(**settings):
    """Two rows; a request takes both a step's prompt and eight steps of 100 ms: 2.2 requests a second are served."""
    settings = {"max_num_seqs": 2, "budget": 16, "prefix_caching": False, "ttft_target_ms": 1000.0} | settings
    return Bench(num_pages=401, **settings)


def come(bench, seconds, rate, *, first=0, **fields):
    """Requests that come evenly for so many seconds. Returns the names of those that were taken and of those refused."""
    taken, refused, number = [], [], first
    end = bench.clock.now() + seconds
    due = bench.clock.now()
    while bench.clock.now() < end:
        while due <= bench.clock.now():
            due += 1.0 / rate
            name = f"r{number}"
            number += 1
            asked = request(name, 4, 8, arrival=bench.clock.now(), **fields)
            try:
                if bench.scheduler.gate.refusal([asked]) is None:
                    bench.scheduler.add([asked])
                    taken.append(name)
                    continue
            except OverloadedError:
                pass
            refused.append(name)
        if bench.scheduler.has_work:
            bench.step(SECONDS)
        else:
            bench.clock.advance(SECONDS)
    return taken, refused


def fill(bench):
    """As many as join in an overload."""
    with suppress(OverloadedError):
        for number in range(9):
            bench.scheduler.add([request(f"other{number}", 4, 8, arrival=bench.clock.now())])


def started(bench, names):
    return [name for name in names if name in bench.tokens]


def test_a_queue_that_grows_is_an_overload_and_ends_with_it():
    bench = crowded()
    come(bench, 2.0, 1.5)
    assert bench.scheduler._shedding.overload.num_begun == 0
    come(bench, 8.0, 9.0, first=100)
    overload = bench.scheduler._shedding.overload
    assert (overload.is_on, overload.num_begun) == (True, 1)
    _, refused = come(bench, 8.0, 9.0, first=200)
    assert len(refused) > 40
    bench.run(1000, SECONDS)
    bench.add(request("later", 4, 2, arrival=bench.clock.now()))
    bench.step(SECONDS)
    assert (overload.is_on, bench.scheduler.gate.notice) == (False, None)


def test_in_an_overload_steps_do_not_grow_with_what_waits():
    bench = crowded()
    come(bench, 6.0, 9.0)
    waiting = bench.scheduler._waiting
    assert waiting.num_tokens > waiting.interactive_tokens == 0
    bench.run(1000, SECONDS)
    come(bench, 1.5, 9.0, first=100)
    assert waiting.interactive_tokens == waiting.num_tokens > 0


def test_in_an_overload_those_who_start_are_in_time():
    """Nine a second come where about two are served: nobody waits as long as the queue would make them."""
    bench = crowded()
    come(bench, 6.0, 9.0)
    queue_times = []
    taken, refused = come(bench, 10.0, 9.0, first=100)
    bench.run(1000, SECONDS)
    queue_times = [bench.ended[name].queue_time for name in taken if bench.ended[name].error is None]
    assert len(refused) > len(taken)
    assert len(queue_times) >= 15, "the machine is as busy as ever"
    assert sorted(queue_times)[int(0.8 * len(queue_times))] <= 1.2


def test_a_crowd_that_comes_at_once_is_served_in_its_order():
    bench = crowded()
    bench.add(*(request(f"r{number}", 4, 8) for number in range(40)))
    bench.run(1000, SECONDS)
    assert all(update.error is None for update in bench.ended.values())
    assert list(bench.ended) == [f"r{number}" for number in range(40)]


def test_as_many_clients_as_wait_twice_over_are_no_overload_for_long():
    """Each asks again when it was answered: refusing them would help nobody, and none of them starves."""
    bench = crowded(max_num_seqs=4)
    number, asked = 0, {}
    waits = []
    for _ in range(600):
        while len(bench.scheduler.sequences) < 16:
            name = f"r{number}"
            number += 1
            asked[name] = bench.clock.now()
            bench.scheduler.add([request(name, 4, 8, arrival=bench.clock.now())])
        before = set(bench.ended)
        bench.step(SECONDS)
        waits += [bench.clock.now() - asked[name] for name in bench.ended.keys() - before]
    assert all(update.error is None for update in bench.ended.values())
    assert max(waits) < 20.0
    assert not bench.scheduler._shedding.overload.is_on


def test_who_is_late_waits_behind_who_can_be_in_time():
    bench = crowded()
    come(bench, 6.0, 9.0)
    assert bench.scheduler._shedding.overload.is_on
    late = [one.request.id for one in bench.scheduler._waiting if one.late]
    assert late
    bench.scheduler.check()
    taken, _ = come(bench, 5.0, 9.0, first=100)
    assert len(started(bench, taken)) > 5
    assert not started(bench, late)
    bench.run(1000, SECONDS)
    assert set(started(bench, late)) == set(late), "when nobody else waits"


def test_late_ones_leave_rows_to_those_who_can_be_in_time():
    bench = crowded(max_num_seqs=16)
    come(bench, 8.0, 40.0)
    late = {one.request.id for one in bench.scheduler._waiting if one.late}
    assert bench.scheduler._shedding.overload.is_on
    assert len(late) > 10
    sizes = []
    for _ in range(20):
        bench.step(SECONDS)
        rows = {one.request.id for one in bench.scheduler.sequences.values() if one.slot >= 0}
        sizes += [len(rows)] if rows <= late else []
    assert bench.scheduler._shedding.overload.is_on
    assert 8 < max(sizes) <= 14, "of 16, once nobody else runs"
    bench.add(request("new", 4, 8, arrival=bench.clock.now()))
    bench.step(SECONDS)
    assert "new" in bench.tokens, "one that can be in time finds a row"
    bench.run(1000, SECONDS)
    assert late <= set(started(bench, late)), "they start when the overload is over"


def test_the_wait_that_is_allowed_follows_first_tokens():
    overload = Overload(1.0)
    for now in (0.0, 1.5, 3.0):  # two intervals are over
        overload.came(100)
        overload.look(now, waits=True, backlog=10.0)
    assert overload.is_on
    before = overload.longest_wait
    overload.first_token(2.9, 100.0)
    assert overload.longest_wait == before, "it came before the overload"
    for turn in range(200):
        overload.first_token(3.1, 3.9 if turn % 20 else 4.2)
    assert overload.longest_wait == 0.5, "one in twenty is late: no more than half of the target"
    for _ in range(20):
        overload.first_token(3.1, 4.2)
    assert overload.longest_wait == 0.05, "who could start at once always joins"
    for hostile in (float("nan"), float("inf"), -float("inf")):
        overload.first_token(3.1, hostile)
        assert 0.05 <= overload.longest_wait <= 0.5


def test_who_says_how_long_it_waits_is_not_refused_but_waits_behind():
    bench = crowded()
    come(bench, 6.0, 9.0)
    fill(bench)
    patient = request("patient", 4, 8, arrival=bench.clock.now(), queue_deadline=bench.clock.now() + 60, own_queue_timeout=True)
    bench.scheduler.add([patient])
    assert bench.scheduler.sequences["patient"].late
    bench.run(1000, SECONDS)
    assert bench.ended["patient"].error is None


def test_a_list_of_prompts_is_let_in_or_refused_by_its_first():
    bench = crowded()
    _, refused = come(bench, 6.0, 9.0, of_list=True)
    assert (refused, bench.scheduler._shedding.overload.num_begun) == ([], 0), "one request of many prompts is no overload"
    bench.run(1000, SECONDS)
    come(bench, 6.0, 9.0, first=100)
    fill(bench)
    first, second = (request(name, 4, 8, arrival=bench.clock.now(), of_list=name == "second") for name in ("first", "second"))
    with pytest.raises(OverloadedError):
        bench.scheduler.add([first])
    assert bench.scheduler.gate.refusal([second]) is None
    bench.scheduler.add([second])
    assert bench.scheduler.sequences["second"].late, "it waits behind those that can be in time"
    bench.run(1000, SECONDS)
    assert bench.ended["second"].error is None


def test_batch_is_neither_refused_nor_counted():
    bench = crowded()
    _, refused = come(bench, 6.0, 9.0, service_class=BATCH)
    assert not refused
    assert bench.scheduler._shedding.overload.num_begun == 0
    come(bench, 6.0, 9.0, first=100)
    bench.scheduler.add([request("batch", 4, 8, service_class=BATCH)])
    assert bench.scheduler.gate.refusal([request("more", 4, 8, service_class=BATCH)]) is None


def test_without_a_target_nobody_is_refused_for_it():
    bench = crowded(ttft_target_ms=0.0)
    _, refused = come(bench, 10.0, 9.0)
    assert not refused


def test_the_door_refuses_at_once_and_what_it_refuses_counts():
    bench = crowded()
    come(bench, 6.0, 9.0)
    gate, answers = bench.scheduler.gate, []
    before = gate.num_refused
    for number in range(30):
        answers.append(gate.refusal(family(f"d{number}x", 2, 8)))
    refused = [error for error in answers if error is not None]
    assert len(refused) >= 25
    assert gate.num_refused - before == len(refused)
    assert all("ttft_target_ms" in error.message and error.retry_after >= 1.0 for error in refused)
    for _ in range(12):  # an interval is over: those that were refused at the gate keep the overload on
        bench.step(SECONDS)
    assert bench.scheduler._shedding.overload.is_on
    own = request("own", 4, own_queue_timeout=True)
    assert gate.refusal([own]) is None


def test_another_tenant_is_let_in_while_one_fills_the_queue():
    bench = crowded()
    come(bench, 6.0, 9.0, tenant="heavy")
    assert bench.scheduler.gate.refusal([request("light", 4, tenant="light")]) is None
    assert bench.scheduler.gate.refusal([request("lower", 4, tenant="light", service_class=FREE)]) is not None
    bench.scheduler.add([request("light", 4, tenant="light", arrival=bench.clock.now())])


@pytest.mark.parametrize("times", [[0.0], [1e9, -1e9, 0.0], [0.0] * 100])
def test_clocks_that_stand_still_or_go_back_begin_no_overload_that_stays(times):
    overload = Overload(1.0)
    for now in times:
        overload.came(100)
        overload.look(now, waits=True, backlog=100.0)
    assert overload.look(2e9, waits=False, backlog=100.0) is False
