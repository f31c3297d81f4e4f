"""Files in a server of several processes: each knows what the others stored, and whoever comes after them."""

from __future__ import annotations

import select
import socket
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import psutil

from server.batches.store import Quotas, Store
from tests.support.hash_server import FRONT_END, hash_server, until

LINES = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hi"}}\n'

HEAD = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n%b\r\n\r\n"
FORM = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'


def test_front_ends_share_files_and_a_killed_server_leaves_whole_ones(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with hash_server(tmp_path, {"state_dir": str(state), "frontends": 2, "max_tenant_mib": 1}) as server:
        assert len(server.pids(FRONT_END)) == 2
        ids = []
        for _ in range(6):  # a connection each, so that both front ends are asked
            reply = httpx.post(
                f"{server.http}/v1/files",
                verify=False,
                data={"purpose": "batch"},
                files={"file": ("in.jsonl", LINES)},
                timeout=60,
            )
            ids.append(reply.json()["id"])
            listed = httpx.get(f"{server.http}/v1/files", verify=False, params={"order": "asc"}, timeout=60).json()["data"]
            assert [one["id"] for one in listed] == ids
        host, _, port = server.http.removeprefix("http://").rpartition(":")
        check_that_unfinished_uploads_count((host, int(port)), state, server.http)
        with socket.create_connection((host, int(port))) as client:
            client.sendall(HEAD % b"Content-Length: 900000" + FORM + b"x" * 100_000)
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


def check_that_unfinished_uploads_count(address: tuple[str, int], state: Path, url: str) -> None:
    """Uploads that never end, over both front ends, take no more than the tenant has; the rest is told so. Then they are gone."""
    piece = b"%x\r\n%b\r\n" % (100_000, b"x" * 100_000)
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(address)) for _ in range(20)]
        for client in clients:
            client.sendall(HEAD % b"Transfer-Encoding: chunked" + b"%x\r\n%b\r\n" % (len(FORM), FORM) + piece)
        refused: set[socket.socket] = set()

        def told() -> bool:
            refused.update(select.select([one for one in clients if one not in refused], [], [], 0)[0])
            return len(refused) >= 10

        until(told)
        for client in refused:
            assert client.recv(4096).startswith(b"HTTP/1.1 403 ")
        assert sum(path.stat().st_size for path in (state / "files").iterdir()) <= 2**20

    def fits() -> bool:
        wish = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", b"x" * 1_000_000)}}
        reply = httpx.post(f"{url}/v1/files", verify=False, **wish, timeout=60)  # type: ignore[arg-type]
        return reply.is_success and httpx.delete(f"{url}/v1/files/{reply.json()['id']}", verify=False, timeout=60).is_success

    until(fits)


def on_disk(state: Path) -> set[str]:
    return {path.name for path in (state / "files").iterdir()}
