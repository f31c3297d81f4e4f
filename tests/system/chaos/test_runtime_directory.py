"""A server that loses the directory where its processes meet, as cleaners of temporary files and logouts make it."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.processes.runtime import RuntimeDirectory
from tests.support.hash_executor import expected
from tests.support.hash_server import ENGINE, FRONT_END, PATIENCE, HashServer, hash_server, until

ASK: dict[str, Any] = {"prompt": [72, 101, 108], "max_tokens": 5, "return_token_ids": True}
LONG = ASK | {"max_tokens": 200}


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """This user's runtime directory, with a short name."""
    path = Path(tempfile.mkdtemp())
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def directory(home: Path) -> Path:
    (found,) = home.glob("jaxserve-*")
    return found


def ask(server: HashServer) -> int:
    return httpx.post(f"{server.http}/v1/completions", json=ASK, timeout=PATIENCE).status_code


def lose(server: HashServer, place: Path) -> None:
    """Delete a place and wait until the server has another, whose metrics count on."""
    before = server.metrics()["requests_received_total"]
    (engine,) = server.pids(ENGINE)
    shutil.rmtree(place)
    until(lambda: len(list(place.parent.glob("jaxserve-*/metrics/counter_*.db"))) >= 2)
    until(lambda: server.metrics()["requests_received_total"] == before)
    assert server.pids(ENGINE) == [engine]
    assert server.is_ready()


def test_a_lost_directory_is_made_again_and_streams_go_on(tmp_path: Path, home: Path) -> None:
    with hash_server(tmp_path, step_seconds=0.03) as server:
        assert ask(server) == 200
        lost = directory(home)
        assert lost.stat().st_mode & 0o77 == 0

        async def during() -> list[int]:
            async with httpx.AsyncClient(base_url=server.http, timeout=PATIENCE) as client:
                asking = asyncio.create_task(client.post("/v1/completions", json=LONG))
                await asyncio.to_thread(lambda: until(lambda: server.metrics()["num_requests_running"] == 1))
                await asyncio.to_thread(lose, server, lost)
                return list((await asking).json()["choices"][0]["token_ids"])

        assert asyncio.run(during()) == expected([72, 101, 108], 200, vocab=260)
        lose(server, directory(home))  # again
        log = server.err.read_text()
        assert log.count("was lost: sockets and metrics are in") == 2
        assert "Traceback" not in log

        for module in (FRONT_END, ENGINE):  # those that come later find each other
            (victim,) = server.pids(module)
            os.kill(victim, signal.SIGKILL)
            until(lambda module=module, victim=victim: server.pids(module) not in ([], [victim]))
            server.until_ready()
            assert ask(server) == 200
        assert server.metrics()["process_restarts_total"] == 2
        assert server.stop() == 0
        assert list(home.iterdir()) == []


def test_a_socket_that_is_cleaned_away_alone(tmp_path: Path, home: Path) -> None:
    with hash_server(tmp_path) as server:
        before = directory(home)
        (before / "engine").unlink()
        until(lambda: not before.exists())
        (victim,) = server.pids(FRONT_END)
        os.kill(victim, signal.SIGKILL)
        until(lambda: server.pids(FRONT_END) not in ([], [victim]))
        server.until_ready()
        assert ask(server) == 200


def test_what_cannot_be_made_again_is_said_by_readiness_until_it_can(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("TMPDIR", str(home))
    with hash_server(tmp_path) as server:
        shutil.rmtree(home)
        until(lambda: not server.is_ready())
        unready = httpx.get(f"{server.http}/ready", timeout=60)
        assert (unready.status_code, unready.json()["error"]["code"]) == (503, "engine_dead")
        assert "no other can be made" in unready.json()["error"]["message"]
        assert ask(server) == 200, "who is connected stays so"
        page = httpx.get(f"{server.http}/metrics", timeout=PATIENCE)
        assert page.status_code == 200
        assert "jaxserve:engine_up" in page.text, "what needs no files is told"
        assert "requests_received" not in page.text, "counters do not seem to go back"
        home.mkdir()
        server.until_ready()
        until(lambda: server.metrics()["requests_received_total"] == 1)
        log = server.err.read_text()
        assert log.count("is lost and no other can be made") == 1
        assert log.count("cannot be read") <= 1
        assert "Traceback" not in log


def test_what_goes_before_the_first_look_is_missed_too(tmp_path: Path) -> None:
    runtime = RuntimeDirectory(str(tmp_path))
    runtime.path.joinpath("engine").touch()
    runtime.note()
    runtime.path.joinpath("engine").unlink()
    assert [runtime.lost(), runtime.lost()] == [False, True], "at two looks in a row"
    runtime.remove()


def test_a_state_directory_has_it_where_the_user_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with tempfile.TemporaryDirectory() as state:
        left = Path(state) / "run" / "jaxserve-left"
        left.mkdir(parents=True)
        (left / "engine").touch()
        runtime = RuntimeDirectory(state)
        assert runtime.path.parent == Path(state) / "run"
        assert not left.exists(), "of a server that was killed"
        deep = Path(state) / ("long" * 30)
        deep.mkdir()
        elsewhere = RuntimeDirectory(str(deep))
        assert elsewhere.path.parent == Path(tempfile.gettempdir()), "names of sockets are short"
        elsewhere.remove()
        runtime.remove()
        assert not runtime.path.exists()


def test_a_process_without_a_descriptor_to_look_with_has_not_lost_it(home: Path) -> None:
    runtime = RuntimeDirectory(None)
    few, many = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, many))
    try:
        lost = runtime.lost()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, many))
    assert not lost
    shutil.rmtree(directory(home))
    assert runtime.lost()
    runtime.remove()
