"""The soak: its minutes are alike, what clients see is counted, and what does not hold is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.load import minutes, schedule
from benchmarks.load.batches import Batch
from benchmarks.load.clients import Answer, Clients, code
from benchmarks.load.run import Soak, capacity, look
from benchmarks.load.schedule import SHARES, Ask, Kind
from benchmarks.load.watch import counters, steps
from benchmarks.soak import logged
from jaxserve.terminal.metrics_page import Change, Page
from jaxserve.types import ServiceClass
from tests.support.hash_server import HashServer, hash_server

CONTEXT = 256


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HashServer]:
    folder = tmp_path_factory.mktemp("soak")
    with hash_server(folder, {"state_dir": str(folder / "state")}, step_seconds=0.01) as running:
        yield running


def ask(kind: Kind, output: int = 8, prompt: int = 8) -> Ask:
    return Ask(0, kind, 0.0, prompt, output, None, 0, "alpha", ServiceClass.INTERACTIVE_PAID)


def test_minutes_are_alike_but_for_their_words() -> None:
    asks = schedule.minute(20.0, context=2048)
    assert asks == schedule.minute(20.0, context=2048)
    assert {one.kind for one in asks} == set(SHARES)
    assert {one.tenant for one in asks} == {"alpha", "beta"}
    assert all(0.0 < one.due < 60 * (1 - schedule.PAUSE) for one in asks)
    assert len(asks) == pytest.approx(20 * 60 * (1 - schedule.PAUSE), rel=0.15)
    sharing = next(one for one in asks if one.prefix is not None)
    first, second = (schedule.prompt(sharing, number, 1000) for number in (0, 1))
    assert len(first) == len(second) > sharing.prompt
    assert first != second
    other = next(one for one in asks if one.prefix == sharing.prefix and one is not sharing)
    shared = len(first) - sharing.prompt
    assert schedule.prompt(other, 0, 1000)[:shared] == first[:shared]


def test_a_small_context_is_enough() -> None:
    asks = schedule.minute(50.0, context=256)
    assert max(len(schedule.prompt(one, 0, 1000)) + one.output for one in asks) <= 256


async def test_every_kind_is_answered_or_left(server: HashServer) -> None:
    sender = Clients(server.http, server.grpc, "hash")
    for kind in schedule.SHARES:  # without forms, which this engine knows none of
        left = kind in schedule.LEFT
        answer = Answer(ask(kind, output=200 if left else 8), due=0.0)
        await sender.send(answer, [5] * 8)
        assert answer.error == ""
        assert answer.ended
        assert answer.left == left, "an output of 200 steps is not whole when two pieces have come"
        assert bool(answer.ttft) == (kind is not Kind.WHOLE)
    await sender.close()


async def test_what_goes_wrong_is_kept(server: HashServer) -> None:
    sender = Clients(server.http, server.grpc, "hash")
    for kind, error in ((Kind.STREAM, "400 context_length_exceeded"), (Kind.GRPC, "grpc INVALID_ARGUMENT")):
        answer = Answer(ask(kind), due=0.0)
        await sender.send(answer, [5] * CONTEXT)
        assert (answer.error, answer.ttft) == (error, None)
    await sender.close()
    nowhere = Clients("http://127.0.0.1:1", "127.0.0.1:1", "hash")
    for kind, error in ((Kind.STREAM, "network: "), (Kind.GRPC, "grpc UNAVAILABLE")):
        answer = Answer(ask(kind), due=0.0)
        await nowhere.send(answer, [5])
        assert answer.error.startswith(error)
        assert answer.ended
    await nowhere.close()


async def test_a_rehearsal_holds(server: HashServer) -> None:
    """Minutes of a second against a whole server: everything that is to be written down is there, and nothing is lost."""
    subject = await look(server.http, server.grpc, server.popen.pid)
    assert await capacity(subject, clients=2, seconds=0.5) > 0
    told: list[int] = []
    soak = Soak(subject, schedule.minute(20.0, subject.context, seconds=1.0), seconds=1.0)
    end = await soak.run(2, lambda: told.append(len(soak.rows)))
    assert told == [1, 2]
    for row in soak.rows:
        assert row["requests"] == soak.rows[0]["requests"] > 0
        assert {"engine", "front end", "batches", "supervisor"} <= row["memory_mib"].keys()
    steps = [row["steps"]["rows"]["mean"] for row in soak.rows if row["steps"]["rows"]]  # none in a second that others had
    assert steps
    assert min(steps) >= 1
    assert sum(row["counters"].get("requests_received_total", 0) for row in soak.rows) > 0
    assert max(row["ttft_s"].get("p50", 0.0) for row in soak.rows) > 0
    assert [verdict["what"] for verdict in minutes.verdicts(soak.rows, soak.batches, end) if not verdict["holds"]] == []
    assert sum(batch.completed for batch in soak.batches) == sum(batch.lines for batch in soak.batches) == 4


def row(p99: float, errors: dict[str, int] | None = None, still_open: int = 0) -> minutes.Row:
    return {"ttft_s": {"p99": p99}, "errors": errors or {}, "open": still_open}


def test_verdicts() -> None:
    fates = {"received": 6, "finished": 3, "aborted": 2, "rejected": 1, "active": 0}
    idle = {"running": 0.0, "waiting": 0.0, "pages": 0.0}
    good = minutes.verdicts([row(9.0), row(9.0), row(1.0), row(1.5)], [Batch(3, 3)], {"requests": fates, **idle})
    assert all(verdict["holds"] for verdict in good)
    lost = {"requests": {**fates, "received": 7}, **idle, "pages": 0.1}
    bad = minutes.verdicts([row(9.0), row(9.0), row(1.0), row(1.6, {"503 queue_full": 2}, 1)], [Batch(3, 2)], lost)
    assert not any(verdict["holds"] for verdict in bad)
    assert len(bad) == len(good) == 5


def test_seen_of_a_minute() -> None:
    streamed = Answer(ask(Kind.STREAM), 1.0, [1.5, 1.6, 1.8], 2.0)
    refused = Answer(ask(Kind.STREAM), 1.0, [], 1.1, "503 queue_full")
    still_open = Answer(ask(Kind.GRPC), 1.0, [4.0])
    several = Answer(ask(Kind.SEVERAL), 1.0, [2.0, 2.001], 2.1)
    found = minutes.seen([streamed, refused, still_open, several])
    assert (found["requests"], found["open"], found["left"]) == (4, 1, 0)
    assert found["errors"] == {"503 queue_full": 1}
    assert found["ttft_s"]["max"] == pytest.approx(3.0)
    assert found["itl_s"] == {"p50": 0.15, "p99": 0.199, "max": 0.2}, "pieces of several sequences tell nothing"


PAGE = """# TYPE jaxserve:batch_rows histogram
jaxserve:batch_rows_bucket{{le="1.0"}} {one}
jaxserve:batch_rows_bucket{{le="8.0"}} {all}
jaxserve:batch_rows_bucket{{le="+Inf"}} {all}
jaxserve:batch_rows_sum {sum}
jaxserve:batch_rows_count {all}
# TYPE jaxserve:not_in_the_catalogue counter
jaxserve:not_in_the_catalogue_total{{model_name="m",why="x"}} {new}
# TYPE jaxserve:still counter
jaxserve:still_total 4.0
"""


def test_what_a_metrics_page_says_of_a_minute() -> None:
    """Counters that this code has never heard of are recorded too, and those that stand still are not."""
    before = Page.read(PAGE.format(one=1, all=1, sum=1, new=2), 0.0)
    after = Page.read(PAGE.format(one=1, all=11, sum=81, new=5), 60.0)
    found = Change(before, after)
    assert steps(found)["count"] == 10
    assert steps(found)["rows"]["mean"] == 8.0
    assert counters(found) == {"not_in_the_catalogue_total{why=x}": 3.0}


def test_codes_and_warnings() -> None:
    assert code(b'{"error": {"message": "no", "code": "queue_full"}}') == "queue_full"
    assert code(b'data: {"x": 1}\n\ndata: {"error": {"code":"shut_down"}}\n\n') == "shut_down"
    assert code(b"<html>") == ""
    assert logged("1 INFO a: b\n2 WARNING a: c\nready") == ["2 WARNING a: c"]
