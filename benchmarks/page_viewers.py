"""What the page of the engine costs: step time and stream latency while nobody, one and ten watch.

    python -m benchmarks.page_viewers [--rounds 20] [--seconds 3] [--streams 64] [--step-ms 5]

A whole server as processes over an engine whose steps take a set time (`paced_engine`), one front end, and clients that stream
completions without a pause (`stream_clients`, a process of their own). Watchers are SSE clients of /debug/engine in one more
process, which read and throw away. Rounds alternate the numbers of watchers in an order that turns from round to round, within
one run of one server, so that what else the machine does hits all of them alike. Each measurement takes:

- `step`: mean seconds of a step, and `turn`, the host's share of it: all phases but the wait (from /metrics).
- `late`: from the end of a token's step to its client, median and 99th percentile; `gap`: between two tokens of a stream.
- `engine_us` and `front_end_us`: CPU time of the two processes for each step, which tells most where the machine is shared.

For each number of watchers: median and quartiles over rounds; and the median over rounds of the ratio to the same round without
watchers, with its quartiles, which is what to look at. Besides, `looks`: what the one look takes that a front end has four times
a second, with 50 turns in it, in the engine's thread and in its process: the quickest of many, which other work does not disturb.

Prints a table and writes benchmarks/results/page_viewers.json.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.front_ends import observe
from benchmarks.paced_engine import CONTEXT, paced_engine, write_tokenizer
from benchmarks.paced_server import ROOT, PacedServer, paced_server
from jaxserve.engine.calls import Look, run_call
from jaxserve.engine.remote.codec import encode
from jaxserve.engine.watching import watch as watch_engine
from jaxserve.metrics.frame import Cursor, EngineLook
from jaxserve.metrics.instruments import Instruments
from jaxserve.metrics.turn import PHASES
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.request import EngineRequest
from server.feed.hub import INTERVAL

RESULTS = Path(__file__).parent / "results" / "page_viewers.json"
WATCHERS = (0, 1, 10)
WAIT = "wait"
_FIGURES = ("step_ms", "turn_ms", "late_p50_ms", "late_p99_ms", "gap_p50_ms", "gap_p99_ms", "engine_us", "front_end_us")


def watch(url: str, count: int) -> None:
    """Watch until killed, so many at a time; says when all have a frame."""

    async def one(client: httpx.AsyncClient, began: asyncio.Event) -> None:
        async with client.stream("GET", f"{url}/debug/engine") as reply:
            reply.raise_for_status()
            async for _ in reply.aiter_raw():
                began.set()
        raise RuntimeError("a watcher's stream ended")

    async def run() -> None:
        async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None)) as client:
            began = [asyncio.Event() for _ in range(count)]
            watching = asyncio.gather(*(one(client, event) for event in began))
            everybody = asyncio.gather(*(event.wait() for event in began))
            await asyncio.wait((watching, everybody), return_when=asyncio.FIRST_COMPLETED)
            print("watching", flush=True)
            await watching

    asyncio.run(run())


@contextmanager
def watchers(url: str, count: int) -> Iterator[None]:
    """So many watch meanwhile. Raises RuntimeError if one of them stops."""
    if not count:
        yield
        return
    command = [sys.executable, "-m", "benchmarks.page_viewers", "--watch", url, "--watchers", str(count)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as popen:
        try:
            assert popen.stdout is not None
            if not popen.stdout.readline():
                raise RuntimeError("watchers did not start")
            yield
            if popen.poll() is not None:
                raise RuntimeError("a watcher stopped")
        finally:
            popen.kill()


def counters(url: str) -> dict[str, float]:
    """Sums and counts of step times and of the host's phases."""
    found: dict[str, float] = {}
    for line in httpx.get(f"{url}/metrics", timeout=30).text.splitlines():
        for name in ("step_seconds_sum", "step_seconds_count", *(f"step_phase_seconds_sum:{phase}" for phase in PHASES)):
            series, _, phase = name.partition(":")
            if line.startswith(f"jaxserve:{series}{{") and (not phase or f'phase="{phase}"' in line):
                found[name] = float(line.rsplit(" ", 1)[1])
    return found


def measure(server: PacedServer, count: int, streams: int, seconds: float) -> dict[str, float]:
    """One measurement with so many watchers. Raises RuntimeError if a stream or a watcher breaks."""
    with watchers(server.http, count):
        before = counters(server.http)
        seen = observe(server, "http", streams, seconds)
        after = counters(server.http)
    steps = after["step_seconds_count"] - before["step_seconds_count"]
    host = sum(after[name] - before[name] for name in after if ":" in name and not name.endswith(WAIT))
    return {
        "step_ms": 1e3 * (after["step_seconds_sum"] - before["step_seconds_sum"]) / steps,
        "turn_ms": 1e3 * host / steps,
        "late_p50_ms": 1e3 * seen.late["p50"],
        "late_p99_ms": 1e3 * seen.late["p99"],
        "gap_p50_ms": 1e3 * seen.gaps["p50"],
        "gap_p99_ms": 1e3 * seen.gaps["p99"],
        "engine_us": 1e6 * seen.cores["engine"] * seen.seconds * streams / seen.tokens,
        "front_end_us": 1e6 * seen.cores["front_end_0"] * seen.seconds * streams / seen.tokens,
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else [*values, *values, *values]
    return {"q1": round(low, 4), "median": round(middle, 4), "q3": round(high, 4)}


def summary(rounds: Sequence[dict[int, dict[str, float]]]) -> dict[str, Any]:
    """By number of watchers and figure: its spread, and that of its ratio to the same round without watchers."""
    return {
        str(count): {
            name: {
                **spread([one[count][name] for one in rounds]),
                "ratio": spread([one[count][name] / one[0][name] for one in rounds if one[0][name] > 0.0]),
            }
            for name in _FIGURES
        }
        for count in WATCHERS
    }


def look_cost(rows: int, turns: int = 50, looks: int = 18) -> dict[str, float]:
    """Microseconds that an engine takes to answer a look while so many sequences run, and to write the answer down."""
    with tempfile.TemporaryDirectory(prefix="jaxserve-benchmark-") as folder:
        argument = {"rows": rows, "step_seconds": 0.0, "tokenizer": str(write_tokenizer(Path(folder)))}
        core = paced_engine(argument, lambda *_: None).core
    watch_engine(core, "paced", Instruments())
    params = SamplingParams(max_tokens=CONTEXT - 16, ignore_eos=True)
    for number in range(rows):
        name = f"cmpl-{number:032x}/0.0.{number}/0"
        one = EngineRequest(name, tuple(range(16)), params, CONTEXT - 16, number, frozenset(), b"", core.scheduler.clock.now())
        core.add([one])
    first = run_call(core, Look())
    assert isinstance(first, EngineLook)
    cursor, answered, written, size = Cursor(first.engines[0].life), [], [], 0
    for _ in range(looks):
        for _ in range(turns):
            core.step()
            core.emitted()
        began = time.perf_counter()
        look = run_call(core, Look(cursor))
        done = time.perf_counter()
        size = len(encode(look))
        written.append(time.perf_counter() - done)
        answered.append(done - began)
        assert isinstance(look, EngineLook)
        assert look.frame is not None
        cursor = look.frame.next
    share = 100.0 * (min(answered) + min(written)) / INTERVAL
    return {
        "answer_us": round(1e6 * min(answered), 1),
        "write_us": round(1e6 * min(written), 1),
        "bytes": size,
        "percent_of_a_core": round(share, 3),
    }


def run(rounds: int, seconds: float, streams: int, step_ms: float) -> dict[str, Any]:
    """All rounds."""
    done: list[dict[int, dict[str, float]]] = []
    loads = [os.getloadavg()[0]]
    with paced_server(front_ends=1, rows=streams, step_seconds=step_ms / 1e3) as server:
        measure(server, 0, streams, min(seconds, 1.0))  # everything was used once
        for number in range(rounds):
            order = [*WATCHERS[number % len(WATCHERS) :], *WATCHERS[: number % len(WATCHERS)]]
            done.append({count: measure(server, count, streams, seconds) for count in order})
            loads.append(os.getloadavg()[0])
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return {
        **machine.describe(),
        "rounds": rounds,
        "seconds": seconds,
        "streams": streams,
        "step_ms_set": step_ms,
        "load_average": spread(loads),
        "looks": {str(rows): look_cost(rows) for rows in (64, 256)},
        "watchers": summary(done),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--watch", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--watchers", type=int, default=1, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.watch is not None:
        with contextlib.suppress(KeyboardInterrupt):
            watch(given.watch, given.watchers)
        return
    results = run(given.rounds, given.seconds, given.streams, given.step_ms)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    table = Table(title="median, and median ratio to nobody watching (quartiles)", title_justify="left")
    for column in ("figure", *(f"{count} watching" for count in WATCHERS)):
        table.add_column(column, justify="right")
    for name in _FIGURES:
        cells = []
        for count in WATCHERS:
            one = results["watchers"][str(count)][name]
            ratio = one["ratio"]
            told = f" {ratio['median']:.3f} ({ratio['q1']:.3f} to {ratio['q3']:.3f})" if count else ""
            cells.append(f"{one['median']:.3f}{told}")
        table.add_row(name, *cells)
    Console().print(table)
    Console().print(results["looks"])


if __name__ == "__main__":
    main()
