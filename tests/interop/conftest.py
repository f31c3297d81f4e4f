"""One server process with keys that the clients of this folder share; the bundled model, two front ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.interop.programs import run
from tests.support.serve_process import ROOT, Process, served
from tests.unit.metrics.scrape import values

# Other tests serve the bundled model with these: what one has compiled, the others load.
SMALL = ("--max-num-seqs", "4", "--max-num-batched-tokens", "32")


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


def new_key(file: Path, tenant: str, *arguments: str) -> str:
    """Make a key as operators do, and add it to the file."""
    made = run([sys.executable, "-m", "jaxserve.keys", "new", "--tenant", tenant, *arguments], cwd=ROOT)
    with file.open("a") as lines:
        lines.write(made.stdout)
    return made.stderr.split()[-1]


@contextmanager
def gated(folder: Path, tenants: dict[str, tuple[str, ...]], *arguments: str) -> Iterator[Gated]:
    """A server for the tenants, each with the options of its key."""
    file, log = folder / "keys.toml", folder / "usage.jsonl"
    keys = {tenant: new_key(file, tenant, *options) for tenant, options in tenants.items()}
    for process in served(folder, "pico", *SMALL, "--keys", str(file), "--usage-log", str(log), *arguments):
        yield Gated(process, keys, log)


@pytest.fixture(scope="package")
def pico(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gated]:
    tenants = {"acme": (), "one-at-a-time": ("--max-concurrent", "1")}
    with gated(tmp_path_factory.mktemp("pico"), tenants, "--frontends", "2") as running:
        yield running
