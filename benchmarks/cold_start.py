"""From `python -m jaxserve.serve MODEL` to ready: the first start, the second, and what shortens the first.

    python -m benchmarks.cold_start [--rounds 3] [--models pico llama-150m]

Starts a server in turns: with an empty cache directory ("first"), with the directory that this start left ("second"), with an
empty one and programs that `python -m jaxserve.compile` saved before ("prepared"), and with an empty one where only the few
steps that hold every plan are compiled before it is ready ("few": `--before-ready first`). Seconds are from the command to the
line that says ready, processor seconds those of all its processes by then, phases those of the engine's process as its banner
says them. llama-150m is a checkpoint of 400 MB with random weights, in the page cache. Writes
benchmarks/results/cold_start.json; its headline is the last model's. While it runs no file of the engine may change: that makes
it another engine.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks import machine, servers
from benchmarks.peers import checkpoint
from jaxserve.engine.preparation import BUNDLED_MODEL, model_directory

RESULTS = servers.ROOT / "benchmarks" / "results" / "cold_start.json"
WAYS = ("first", "second", "prepared", "few")
SIZES = ("--max-num-seqs", "32", "--max-num-batched-tokens", "512")
_PHASE = re.compile(r"(imports|files|weights|programs|warm|rest) ([\d.]+) s")


@dataclass(frozen=True, slots=True)
class Model:
    """What is served.

    Attributes:
        name: for people.
        path: argument of the commands.
    """

    name: str
    path: str


def start(flags: Sequence[str]) -> dict[str, Any]:
    """Start a server, stop it again. Raises RuntimeError with what it wrote if it does not become ready."""
    begun = time.perf_counter()
    with servers.started([*flags, *SIZES]) as one:
        ready = "ready:" in one.words
        seconds, processor = time.perf_counter() - begun, processor_seconds(one.popen.pid) if ready else 0.0
        if not ready:
            one.popen.wait()
            raise RuntimeError(one.said())
        said = one.said()
    return {"seconds": round(seconds, 2), "processor_seconds": round(processor, 2), "phases": phases(said)}


def processor_seconds(pid: int) -> float:
    """User and system seconds of a process and all below it."""
    process = psutil.Process(pid)
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def phases(banner: str) -> dict[str, float]:
    """The seconds that a banner tells."""
    (line,) = [line for line in banner.splitlines() if line.startswith("  start ")]
    return {name: float(seconds) for name, seconds in _PHASE.findall(line)}


def prepare(model: Model, directory: Path) -> None:
    """Save the programs of all steps."""
    steps = ("--rows", "all", "--tokens", "all", "--target", "cpu", "--output", str(directory))
    command = [sys.executable, "-m", "jaxserve.compile", model.path, *steps, *SIZES]
    subprocess.run(command, cwd=servers.ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def round_of(model: Model, programs: Path, scratch: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every way once."""
    for way in WAYS:
        cache = scratch / ("first" if way == "second" else way)
        more = {"prepared": ("--programs", str(programs)), "few": ("--before-ready", "first")}.get(way, ())
        yield way, start([model.path, "--compilation-cache-dir", str(cache), *more])


def summary(starts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the rounds, and every start."""
    return {
        "seconds": machine.median([one["seconds"] for one in starts]),
        "processor_seconds": machine.median([one["processor_seconds"] for one in starts]),
        "phases": {name: machine.median([one["phases"][name] for one in starts]) for name in starts[0]["phases"]},
        "starts": list(starts),
    }


def measure(model: Model, rounds: int, scratch: Path) -> dict[str, Any]:
    """Medians of every way, and the second start as a share of the first."""
    programs = scratch / "programs"
    prepare(model, programs)
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way, one in round_of(model, programs, scratch / f"round {number}"):
            found[way].append(one)
            print(f"{model.name}, {way}: {one}", flush=True)
    result: dict[str, Any] = {way: summary(starts) for way, starts in found.items()}
    for unit in ("seconds", "processor_seconds"):
        result[f"second_to_first_{unit}"] = round(result["second"][unit] / result["first"][unit], 3)
    return result


def headline(result: dict[str, Any]) -> dict[str, Any]:
    """The first start beside the second: seconds, and those of every phase."""
    first, second = result["first"], result["second"]
    return {
        "first_seconds": first["seconds"],
        "second_seconds": second["seconds"],
        "phases": {name: [seconds, second["phases"][name]] for name, seconds in first["phases"].items()},
    }


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="starts of every kind")
    parser.add_argument("--models", nargs="+", choices=("pico", "llama-150m"), default=["pico", "llama-150m"])
    arguments = parser.parse_args()
    results: dict[str, Any] = machine.describe() | {"command": " ".join(["python -m benchmarks.cold_start", *sys.argv[1:]])}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        written = checkpoint.write_directory(scratch / "llama-150m", dict(checkpoint.weights()))
        models = {"pico": Model("pico", str(model_directory(BUNDLED_MODEL))), "llama-150m": Model("llama-150m", str(written))}
        for chosen in arguments.models:
            results[chosen] = measure(models[chosen], arguments.rounds, scratch / f"{chosen} starts")
    results |= headline(results[arguments.models[-1]])
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    for chosen in arguments.models:
        for way in WAYS:
            one = results[chosen][way]
            took = f"{one['seconds']:6.1f} s, {one['processor_seconds']:5.1f} s of processors"
            print(f"{chosen:12s} {way:10s} {took}, {one['phases']}")


if __name__ == "__main__":
    main()
