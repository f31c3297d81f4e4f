"""Ray's processes are missed once they were not reached several times in a row."""

from __future__ import annotations

import os
import socket

import pytest

from jaxserve.config.runtime import ray_children
from server.fleet.ray_watch import FAILURES, RayServices, RayWatch, listens


def test_a_service_is_lost_after_failures_in_a_row() -> None:
    gone: set[str] = set()
    watch = RayWatch(RayServices({"GCS": "a:1", "raylet": "b:2"}), lambda address: address not in gone)
    assert watch.look() is None
    gone.add("b:2")
    assert [watch.look() for _ in range(FAILURES - 1)] == [None] * (FAILURES - 1)
    gone.clear()
    assert watch.look() is None
    gone.add("b:2")
    assert [watch.look() for _ in range(FAILURES)][-1] == "raylet at b:2"


def test_what_listens_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert listens(address)
    assert not listens(address)


def test_rays_processes_may_keep_compiled_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    before = dict(os.environ)
    with ray_children():
        assert "PYTHONDONTWRITEBYTECODE" not in os.environ
        assert os.environ.keys() - before.keys() == {
            "RAY_agent_register_timeout_ms",
            "RAY_kill_child_processes_on_worker_exit",
            "RAY_worker_niceness",
        }
    assert dict(os.environ) == before
