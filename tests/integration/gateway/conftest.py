"""Real servers on loopback with API keys and a usage log, in front of a scripted engine: bytes for tokens, said back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest

from tests.support.scripted import ScriptedClient
from tests.support.serving import Serving, serving

KEYS = """
[[key]]
sha256 = "{free}"
tenant = "acme"
id = "free"

[[key]]
sha256 = "{limited}"
tenant = "globex"
rpm = 100
tpm = 6000

[[key]]
sha256 = "{batch}"
tenant = "batch"
class = "interactive_free"
max_concurrent = 1

[[key]]
sha256 = "{elsewhere}"
tenant = "elsewhere"
models = ["other"]

[[key]]
sha256 = "{daily}"
tenant = "daily"
daily_tokens = 20

[[key]]
sha256 = "{admin}"
tenant = "ops"
admin = true
"""


def keys_toml(**keys: str) -> str:
    """The file of keys; each key is its own name."""
    names = ("free", "limited", "batch", "elsewhere", "daily", "admin")
    return KEYS.format(**{name: hashlib.sha256(keys.get(name, name).encode()).hexdigest() for name in names})


@pytest.fixture
def engine() -> ScriptedClient:
    return ScriptedClient()


@pytest.fixture
def usage_log(tmp_path: Path) -> Path:
    return tmp_path / "usage.jsonl"


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(keys_toml())
    return path


@pytest.fixture
async def servers(engine: ScriptedClient, keys_file: Path, usage_log: Path) -> AsyncIterator[Serving]:
    async with serving(engine, keys=str(keys_file), usage_log=str(usage_log), max_body_bytes=10_000) as running:
        yield running


@pytest.fixture
async def http(servers: Serving) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=servers.http, timeout=30) as client:
        yield client


@pytest.fixture
async def channel(servers: Serving) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(servers.grpc) as channel:
        yield channel


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def usage(path: Path) -> list[dict[str, Any]]:
    """Every event of a closed log."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def delivered(events: list[dict[str, Any]], tenant: str = "acme") -> int:
    return sum(event["completion_tokens"] for event in events if event["tenant"] == tenant)
