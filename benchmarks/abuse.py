"""What four clients can do to others with bodies that take as much as they can.

    python -m benchmarks.abuse [--seconds 8] [--only NAME ...] [--model pico|150m] [--checkout DIR] [--out FILE]

For each attack of benchmarks/abuse_attacks.py a server of its own is started, with keys for two tenants. The victim sends small
requests, one after the other: first alone, then beside four clients of the other tenant that send the attack's body again as soon
as they have an answer. Told are what attackers got, how long it took, the peak memory of front end and engine, and the victim's
latency alone and beside. "Beside" also holds what takes its share of the machine honestly: the row of ordinary clients says how
much that is. An attack that the server does not survive, or does not answer, costs its own time only.

`--checkout` starts the servers from another checkout, for figures of before. Prints a table; writes `--out` if it is given.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import multiprocessing
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.abuse_attacks import ATTACKS, Attack, Facts
from benchmarks.llama150m import write_config
from benchmarks.servers import ROOT, Started, started
from jaxserve.tokenizer.load import load_tokenizer

CLIENTS = 4
PATIENCE = 60.0  # seconds for one answer
PAUSE = 0.02  # of the victim, between two requests
SAMPLE = 0.05  # seconds between two looks at memory
VICTIM = {"prompt": "hello there", "max_tokens": 8, "temperature": 0}
PROCESSES = {"front_end": "server.processes.frontend", "engine": "jaxserve.engine.remote.child"}
PICO = ROOT / "jaxserve" / "assets" / "pico"


@dataclass(frozen=True, slots=True)
class Latency:
    """The victim's: seconds, and how many requests they are of. `failed` had no answer, or another than 200."""

    requests: int
    failed: int
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Row:
    """One attack: what attackers got, what it took, what the victim noticed. Seconds and MiB."""

    attack: str
    kind: str
    answers: dict[str, int]
    seconds_p50: float
    seconds_max: float
    peak_mib: dict[str, int]
    grown_mib: dict[str, int]
    alone: Latency
    beside: Latency

    @property
    def ratio(self) -> float:
        """The victim's p99 beside, over alone."""
        return self.beside.p99 / self.alone.p99


class Memory:
    """Peak memory of a server's processes, looked at in a thread."""

    def __init__(self, supervisor: int) -> None:
        self._processes = {name: _child(supervisor, module) for name, module in PROCESSES.items()}
        self.before = self._now()
        self.peak = dict(self.before)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _now(self) -> dict[str, int]:
        return {name: process.memory_info().rss // 2**20 for name, process in self._processes.items()}

    def _watch(self) -> None:
        with suppress(psutil.Error):  # it died of the attack
            while not self._stop.wait(SAMPLE):
                self.peak = {name: max(self.peak[name], now) for name, now in self._now().items()}


def _child(supervisor: int, module: str) -> psutil.Process:
    for process in psutil.Process(supervisor).children(recursive=True):
        if f"run_module('{module}'" in " ".join(process.cmdline()):
            return process
    raise RuntimeError(f"the server has no {module}")


def victim(url: str, seconds: float) -> Latency:
    """Small requests, one after the other. One that is unanswered when the time is over is waited for."""
    taken, failed = [], 0
    with httpx.Client(base_url=url, timeout=PATIENCE, headers=_key("victim")) as client:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.monotonic()
            try:
                failed += client.post("/v1/completions", json=VICTIM).status_code != 200
            except httpx.HTTPError:
                failed += 1
            taken.append(time.monotonic() - began)
            time.sleep(PAUSE)
    p50, p99 = np.percentile(taken, (50, 99))
    return Latency(len(taken), failed, round(float(p50), 4), round(float(p99), 4))


def attackers(url: str, path: str, body: bytes, seconds: float, told: Queue[tuple[dict[str, int], list[float]]]) -> None:
    """Four clients that send a body again and again, in a process of their own."""
    answers: Counter[str] = Counter()
    taken: list[float] = []

    async def attack(client: httpx.AsyncClient, end: float) -> None:
        while time.monotonic() < end:
            began = time.monotonic()
            try:
                async with client.stream("POST", path, content=body) as reply:
                    async for _ in reply.aiter_raw():
                        pass
                answers[str(reply.status_code)] += 1
            except httpx.HTTPError as error:
                answers[type(error).__name__] += 1
            taken.append(time.monotonic() - began)

    async def run() -> None:
        headers = {**_key("attacker"), "Content-Type": "application/json"}
        limits = httpx.Timeout(PATIENCE)
        async with httpx.AsyncClient(base_url=url, timeout=limits, headers=headers) as client:
            end = time.monotonic() + seconds
            await asyncio.gather(*(attack(client, end) for _ in range(CLIENTS)))

    asyncio.run(run())
    told.put((dict(answers), taken))


def measure(attack: Attack, facts: Facts, server: Started, seconds: float) -> Row:
    """One attack on a server that has done nothing else."""
    url = server.words[1]
    victim(url, 1.0)
    alone = victim(url, seconds)
    context = multiprocessing.get_context("spawn")
    told: Queue[tuple[dict[str, int], list[float]]] = context.Queue()
    arguments = (url, attack.path, attack.encoded(facts), seconds + 2.0, told)
    process = context.Process(target=attackers, args=arguments)
    with Memory(server.popen.pid) as memory:
        process.start()
        time.sleep(1.0)
        beside = victim(url, seconds)
        answers, taken = told.get(timeout=2 * PATIENCE)
        process.join()
    return Row(
        attack=attack.name,
        kind=attack.kind,
        answers=answers,
        seconds_p50=round(float(np.median(taken)), 3),
        seconds_max=round(max(taken), 3),
        peak_mib=memory.peak,
        grown_mib={name: memory.peak[name] - memory.before[name] for name in memory.peak},
        alone=alone,
        beside=beside,
    )


@contextmanager
def _server(model: str, folder: Path, checkout: Path) -> Iterator[Started]:
    """A server with keys for the two tenants. Raises RuntimeError with what it wrote if it does not start."""
    keys = folder / "keys.toml"
    tenants = ("victim", "attacker")
    keys.write_text("".join(f'[[key]]\nsha256 = "{_digest(name)}"\ntenant = "{name}"\n' for name in tenants))
    named = (
        ["pico"] if model == "pico" else [str(write_config(folder / "150m")), "--load-format", "dummy", "--tokenizer", str(PICO)]
    )
    with started([*named, "--keys", str(keys), "--log-level", "error"], checkout) as server:
        if len(server.words) != 3:
            raise RuntimeError(server.said())
        yield server


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


def _facts(model: str) -> Facts:
    tokenizer = load_tokenizer(PICO)
    context = json.loads((PICO / "config.json").read_text())["max_position_embeddings"] if model == "pico" else 2048
    return Facts(context, tokenizer.vocab_size, tokenizer.max_token_bytes or 1)


def _table(rows: Sequence[Row]) -> Table:
    table = Table(
        "attack", "kind", "answers", "s each, p50 / max", "front end, MiB", "engine, MiB", "victim alone", "beside", "p99 x"
    )
    for row in rows:
        table.add_row(
            row.attack,
            row.kind,
            ", ".join(f"{count} x {status}" for status, count in sorted(row.answers.items())),
            f"{row.seconds_p50} / {row.seconds_max}",
            f"{row.peak_mib['front_end']} (+{row.grown_mib['front_end']})",
            f"{row.peak_mib['engine']} (+{row.grown_mib['engine']})",
            f"{row.alone.p50 * 1e3:.0f} / {row.alone.p99 * 1e3:.0f} ms",
            f"{row.beside.p50 * 1e3:.0f} / {row.beside.p99 * 1e3:.0f} ms",
            f"{row.ratio:.1f}",
        )
    return table


def main() -> None:
    """Run every attack, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="of the victim alone, and of each attack")
    parser.add_argument("--only", nargs="+", default=[], help="attacks whose names begin so")
    parser.add_argument("--model", choices=("pico", "150m"), default="pico")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="where the servers are started from")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    facts = _facts(given.model)
    rows: list[Row] = []
    failed: dict[str, str] = {}
    for attack in ATTACKS:
        if given.only and not attack.name.startswith(tuple(given.only)):
            continue
        try:
            with tempfile.TemporaryDirectory() as folder, _server(given.model, Path(folder), given.checkout) as server:
                rows.append(measure(attack, facts, server, given.seconds))
        except Exception as error:
            failed[attack.name] = repr(error)
        Console(stderr=True).print(rows[-1] if attack.name not in failed else failed[attack.name])
    Console(width=200).print(_table(rows))
    if given.out is not None:
        results: dict[str, Any] = {
            "machine": machine.describe(),
            "model": given.model,
            "clients": CLIENTS,
            "seconds": given.seconds,
            "rows": [{**asdict(row), "p99_ratio": round(row.ratio, 2)} for row in rows],
            "failed": failed,
        }
        given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
