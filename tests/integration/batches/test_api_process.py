"""Files in a server of several processes: each knows what the others stored, and whoever comes after them."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import httpx
import psutil

from server.batches.store import Quotas, Store
from tests.support.hash_server import FRONT_END, hash_server, until

LINES = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hi"}}\n'


def test_front_ends_share_files_and_a_killed_server_leaves_whole_ones(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with hash_server(tmp_path, {"state_dir": str(state), "frontends": 2}) as server:
        assert len(server.pids(FRONT_END)) == 2
        ids = []
        for _ in range(6):  # a connection each, so that both front ends are asked
            reply = httpx.post(
                f"{server.http}/v1/files", verify=False, data={"purpose": "batch"}, files={"file": ("in.jsonl", LINES)}
            )
            ids.append(reply.json()["id"])
            listed = httpx.get(f"{server.http}/v1/files", verify=False, params={"order": "asc"}).json()["data"]
            assert [one["id"] for one in listed] == ids
        host, _, port = server.http.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n")
            client.sendall(b"Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\n")
            client.sendall(b'Content-Disposition: form-data; name="file"; filename="x"\r\n\r\n' + b"x" * 100_000)
            until(lambda: len(on_disk(state)) == 7)
            family = server.family()
            for process in family:
                process.kill()
            server.popen.wait()
            assert not psutil.wait_procs(family, timeout=30)[1]  # their locks go with them
    with closing(Store(state, Quotas(10**9, 10, 10**6))) as store:  # as the next server's worker does
        assert store.remove_orphans() == 1
        assert on_disk(state) == set(ids)
        for file_id in ids:
            _, content = store.open_file("", file_id)
            with content:
                assert content.read() == LINES


def on_disk(state: Path) -> set[str]:
    return {path.name for path in (state / "files").iterdir()}
