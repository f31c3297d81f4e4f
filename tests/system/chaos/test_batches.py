"""A batch through the ends of all processes that take part in it."""

from __future__ import annotations

import json
import os
import signal
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import psutil

from tests.support.batches import begin, check_answers, count_done, lines, request, sdk, wait
from tests.support.hash_server import BATCHES, ENGINE, HashServer, hash_server, nothing_left, starting_hash_server, until

REQUESTS = 700


def test_every_request_is_answered_once_as_if_nothing_had_been(tmp_path: Path) -> None:
    requests = [request(number, 1 + number % 23) for number in range(REQUESTS)]
    bill = tmp_path / "usage.jsonl"
    state = {"state_dir": str(tmp_path / "state"), "usage_log": str(bill), "max_engine_restarts": 20}

    def start(name: str) -> AbstractContextManager[HashServer]:
        folder = tmp_path / name
        folder.mkdir()
        return hash_server(folder, state, step_seconds=0.01, max_num_seqs=16)

    with start("told to end") as server, sdk(server) as client:
        batch = wait(client, begin(client, requests), done=1)
        assert server.stop() == 0
    with start("killed") as server, sdk(server) as client:
        found = client.batches.retrieve(batch.id)
        assert count_done(found) >= count_done(batch), "what was done when the server was told to end is kept"
        for module in (BATCHES, ENGINE):
            (victim,) = server.pids(module)
            os.kill(victim, signal.SIGKILL)
            until(lambda module=module, victim=victim: server.pids(module) not in ([], [victim]))
            found = wait(client, batch, done=count_done(found) + 50)
        until(lambda: server.metrics()["process_restarts_total"] == 2)
        family = server.family()
        psutil.Process(server.popen.pid).kill()
        server.popen.wait()
        nothing_left(family, [])
    with start("to the end") as server, sdk(server) as client:
        ended = wait(client, batch)
        assert (ended.status, count_done(ended), ended.error_file_id) == ("completed", REQUESTS, None)
        output = lines(client, ended.output_file_id)
        assert len(output) == REQUESTS
        check_answers(requests, output)
        assert ended.usage is not None
        assert ended.usage.output_tokens == sum(one["body"]["max_tokens"] for one in requests)
        with starting_hash_server(tmp_path, state) as second:
            assert second.popen.wait(30) == 2
            assert "another server uses" in second.err.read_text()
        assert httpx.get(f"{server.http}/ready", timeout=30).status_code == 200
        assert server.stop() == 0
    # A killed process does not write what the last seconds took; nothing is billed twice.
    events = [json.loads(line) for line in bill.read_text().splitlines()]
    billed = {f"r{int(one['request_id'].rpartition('-')[2]) - 1}": one["completion_tokens"] for one in events if one["final"]}
    assert len(billed) == sum(one["final"] for one in events)
    wanted = {one["custom_id"]: one["body"]["max_tokens"] for one in requests}
    assert billed.items() <= wanted.items()
