"""How much of what it is asked a server still answers in time when it is asked for more than it can do, beside vLLM.

    python -m benchmarks.overload [--factors 0.5,1,2,4,10] [--vllm-python peers/vllm/bin/python] [--models DIR]
    python -m benchmarks.overload --only jaxserve --flags="--max-waiting 64" --factors 4,10 --out /tmp/overload.json
    python -m benchmarks.overload --report

Servers with their default flags stay up for the whole run. First clients that never rest (`--clients`) tell how many requests a
second each answers. The factors are of what jaxserve answers (`--capacity` sets it), so that all engines get the same requests
at the same times: streams of 32 to 512 tokens in and 16 to 128 out, arriving at random for `--seconds`, to one engine after
another, in the other order at every second factor. Clients send no time limit and give up after `--patience` seconds. Goodput
is the requests a second whose first token came within `--ttft` of their arrival and whose others took `--tpot` in the mean, at
most. Writes the JSON after every load. The machine must have nothing else to do; `lag` tells how late the clients sent what was
due, and `cores` what they and the servers took.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import machine
from benchmarks.load.arrivals import Figures, Objective, Place, closed_loop, figures, open_loop, recovered
from benchmarks.load.files import write
from benchmarks.pages import markdown
from benchmarks.peers.checkpoint import Models, write_models
from benchmarks.peers.engines import Engine, Recipe, jaxserve_by_default, vllm

RESULTS = Path(__file__).parent / "results" / "overload.json"
OWN, OTHER = "jaxserve", "vllm"
RECOVERY_SECONDS = 120.0
GOODPUT_SHARE, REFUSAL_SECONDS = 0.9, 0.1  # of the peak at least, above the capacity; until a refusal has left, at most
_TITLES = (
    *("engine", "times capacity", "asked, a second", "goodput, a second", "of its peak", "TTFT p50, s", "p99", "refused"),
    *("after p50, ms", "p99", "most", "gave up", "network errors", "other errors", "lag p99, ms", "clients' cores"),
)


def recipes(given: argparse.Namespace, models: Models) -> list[Recipe]:
    """Of the engines that are asked for, ours first."""
    made = {OWN: jaxserve_by_default(models, shlex.split(given.flags))}
    if given.vllm_python:
        made[OTHER] = vllm(models, given.vllm_python, ())
    return [recipe for name, recipe in made.items() if given.only in (None, name)]


class Measurement:
    """Engines that are ready, and what was seen of them so far.

    Args:
        engines: ours first, if it is there.
        given: the command's arguments.
        report: filled in.
    """

    def __init__(self, engines: Sequence[Engine], given: argparse.Namespace, report: dict[str, Any]) -> None:
        self._engines = engines
        self._given = given
        self._report = report
        self._objective = Objective(given.ttft, given.tpot)
        self._places = {engine.recipe.name: Place(engine.url, engine.recipe.fields, given.patience) for engine in engines}

    def run(self) -> None:
        """Capacities, then every factor. Raises RuntimeError if nothing is answered at all."""
        capacities = self._report["capacity"] = {
            name: uvloop.run(closed_loop(place, self._given.clients, self._given.capacity_seconds))
            for name, place in self._places.items()
        }
        capacity = self._given.capacity or capacities[self._engines[0].recipe.name]
        if not capacity:
            raise RuntimeError(f"no request was answered within {self._given.capacity_seconds:g} seconds")
        self._report |= {"capacity_used": capacity, "loads": []}
        _say(f"answered a second by {self._given.clients} clients that never rest: {capacities}; factors are of {capacity:.3g}")
        for turn, factor in enumerate(self._given.factors):
            for engine in self._engines if turn % 2 == 0 else reversed(self._engines):
                self._report["loads"].append(self._load(engine, factor, capacity * factor, turn))
                write(self._given.out, self._report)

    def _load(self, engine: Engine, factor: float, rate: float, turn: int) -> Figures:
        name, seconds = engine.recipe.name, self._given.seconds
        others = [other for other in self._engines if other is not engine]
        before, began = self._busy(engine, others), time.perf_counter()
        asked = uvloop.run(open_loop(self._places[name], rate, seconds, turn))
        took = time.perf_counter() - began
        cores = {who: (now - before[who]) / took for who, now in self._busy(engine, others).items()}
        found: Figures = {"engine": name, "factor": factor, "rate": rate, **figures(asked, seconds, self._objective)}
        found |= {"took_s": took, "cores": cores, "memory_gb": engine.memory() / 1e9}
        found["recovered_s"] = uvloop.run(recovered(self._places[name], RECOVERY_SECONDS))
        _say(f"{name} at {factor:g}: goodput {found['goodput']:.2f} of {rate:.2f} a second; {found['errors']}")
        return found

    @staticmethod
    def _busy(engine: Engine, others: Sequence[Engine]) -> dict[str, float]:
        """Seconds of processors so far."""
        idle = sum(other.cpu_seconds() for other in others)
        return {"engine": engine.cpu_seconds(), "others": idle, "clients": time.process_time()}


def peak(report: Mapping[str, Any], engine: str) -> float:
    """An engine's best goodput."""
    return float(max(load["goodput"] for load in report["loads"] if load["engine"] == engine))


def kept(report: Mapping[str, Any]) -> list[str]:
    """What jaxserve was to keep under overload, and whether it did."""
    best = peak(report, OWN)
    lines = []
    for load in report["loads"]:
        if load["engine"] != OWN:
            continue
        slowest = load["refusal_s"].get("max", 0.0)
        found = (
            (
                f"goodput is {load['goodput']:.2f}, {GOODPUT_SHARE:.0%} of {best:.2f} at least",
                load["goodput"] >= GOODPUT_SHARE * best,
            ),
            (f"refusals took {1e3 * slowest:.0f} ms, {1e3 * REFUSAL_SECONDS:.0f} at most", slowest <= REFUSAL_SECONDS),
            (f"{load['network_errors']} connections were refused or reset, none at most", not load["network_errors"]),
        )
        overloaded = load["factor"] > 1
        for what, holds in found if overloaded else found[1:]:
            lines.append(f"{'holds' if holds else 'DOES NOT HOLD'}: at {load['factor']:g} times the capacity {what}")
    return lines


def table(report: Mapping[str, Any]) -> str:
    """Markdown: a line for each engine and factor."""
    rows = []
    for load in sorted(report["loads"], key=lambda load: load["engine"]):
        best = peak(report, load["engine"])
        ttft, refusal = load["ttft_s"], load["refusal_s"]
        others = sum(load["errors"].values()) - load["refused"] - load["gave_up"] - load["network_errors"]
        rows.append(
            [
                load["engine"],
                f"{load['factor']:g}",
                f"{load['rate']:.2f}",
                f"{load['goodput']:.2f}",
                f"{load['goodput'] / best:.0%}" if best else "",
                *(f"{ttft[key]:.2f}" if ttft else "" for key in ("p50", "p99")),
                str(load["refused"]),
                *(f"{1e3 * refusal[key]:.0f}" if refusal else "" for key in ("p50", "p99", "max")),
                *(str(count) for count in (load["gave_up"], load["network_errors"], others)),
                f"{1e3 * load['lag_s'].get('p99', 0.0):.0f}",
                f"{load['cores']['clients']:.2f}",
            ]
        )
    return markdown(_TITLES, rows)


def measure(given: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """The whole measurement; what there is of it is in the JSON file after every load."""
    report: dict[str, Any] = {**machine.describe(), "command": machine.command("benchmarks.overload")}
    report |= {"objective": {"ttft_s": given.ttft, "tpot_s": given.tpot}, "seconds": given.seconds, "patience_s": given.patience}
    with ExitStack() as opened:
        engines = list(_started(recipes(given, write_models(given.models or scratch)), scratch, opened))
        report["load_average_before"] = os.getloadavg()[0]
        report["flags"] = {one.recipe.name: machine.without_places(one.recipe.command[1:]) for one in engines}
        Measurement(engines, given, report).run()
    return report


def _started(chosen: Sequence[Recipe], logs: Path, opened: ExitStack) -> Iterator[Engine]:
    for recipe in chosen:
        engine = Engine(recipe, logs / f"{recipe.name}.log")
        opened.callback(engine.stop)
        _say(f"{recipe.name} is ready after {engine.ready_seconds:.1f} s")
        yield engine


def main() -> None:
    """Run, write and print; or print what was written."""
    given = _arguments()
    if not given.report:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # and the servers with it
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # every request has a connection
        with tempfile.TemporaryDirectory() as scratch:
            measure(given, Path(scratch))
    report = json.loads(given.out.read_text())
    print(table(report))
    if any(load["engine"] == OWN for load in report["loads"]):
        print("\n".join(kept(report)))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _factors(text: str) -> list[float]:
    return [float(one) for one in text.split(",")]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="print the table of --out again, and measure nothing")
    parser.add_argument(
        "--factors", type=_factors, default=[0.5, 1.0, 2.0, 4.0, 10.0], help="of the capacity, with commas between"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="for which requests arrive, at each factor")
    parser.add_argument("--ttft", type=float, default=1.0, help="seconds to the first token, to count as goodput")
    parser.add_argument("--tpot", type=float, default=0.25, help="seconds a token after it in the mean, to count as goodput")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds after which a client gives up")
    parser.add_argument("--capacity", type=float, help="requests a second that the factors are of, instead of what is measured")
    parser.add_argument("--capacity-seconds", type=float, default=60.0, help="for which it is measured; this warms up, too")
    parser.add_argument("--clients", type=int, default=32, help="with which it is measured")
    parser.add_argument("--only", choices=(OWN, OTHER), help="one engine alone")
    parser.add_argument("--flags", default="", help="for jaxserve.serve, in one argument")
    parser.add_argument("--models", type=Path, help="folder for the model: where it stays in one place, vLLM compiles it once")
    parser.add_argument("--vllm-python", help="interpreter that has vllm (benchmarks/peers/README.md)")
    given = parser.parse_args()
    if given.only == OTHER and not given.vllm_python:
        parser.error("--only vllm needs --vllm-python")
    return given


if __name__ == "__main__":
    main()
