"""One server process with keys that the clients of this folder share; the bundled model, two front ends."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.serve_process import QUICKLY, Process, Served
from tests.unit.metrics.scrape import values

# Other tests serve the bundled model with these: what one has compiled, the others load.
SMALL = ("--max-num-seqs", "4", "--max-num-batched-tokens", "32", *QUICKLY)
# On a slow machine clients that all come at once would be told to come back later.
NO_HURRY = '{"classes": {"interactive_paid": {"queue_timeout": null}}}'


@dataclass(frozen=True)
class Gated:
    """A server, a key for each tenant, and the log of what was billed."""

    process: Process
    keys: dict[str, str]
    usage_log: Path

    @property
    def base_url(self) -> str:
        """What OpenAI's clients are given."""
        return f"{self.process.http}/v1"

    def metrics(self) -> dict[tuple[str, tuple[str, ...]], float]:
        return values(httpx.get(f"{self.process.http}/metrics", timeout=30).content)

    def billed(self) -> list[dict[str, Any]]:
        """Every event in the log so far."""
        return [json.loads(line) for line in self.usage_log.read_text().splitlines()]


def entry(tenant: str, key: str, limits: str) -> str:
    """What `python -m jaxserve.keys new` prints, which takes a second a key."""
    return f'[[key]]\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\ntenant = "{tenant}"\n{limits}\n'


@contextmanager
def gated(served: Served, folder: Path, tenants: dict[str, str], *arguments: str) -> Iterator[Gated]:
    """A server for the tenants, each with the limits of its key."""
    file, policies, log = folder / "keys.toml", folder / "policies.json", folder / "usage.jsonl"
    policies.write_text(NO_HURRY)
    keys = {tenant: f"key-of-{tenant}" for tenant in tenants}
    file.write_text("\n".join(entry(tenant, keys[tenant], limits) for tenant, limits in tenants.items()))
    files = ("--keys", str(file), "--policies", str(policies), "--usage-log", str(log))
    for process in served(folder, "pico", *SMALL, *files, *arguments):
        yield Gated(process, keys, log)


@pytest.fixture(scope="package")
def pico(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gated]:
    tenants = {"acme": "", "one-at-a-time": "max_concurrent = 1"}
    folder = tmp_path_factory.mktemp("pico")
    with gated(served, folder, tenants, "--frontends", "2", "--state-dir", str(folder / "state")) as running:
        yield running
