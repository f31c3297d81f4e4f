"""How sharp the tests are: mutants drawn from the product, and which of them the tests of their area notice.

    python -m tests.mutation draw [--seed 43]             draws them and writes tests/mutation/mutants.json
    python -m tests.mutation run RESULTS [--root FOLDER]  runs those that RESULTS has no result of yet; may be stopped and resumed
    python -m tests.mutation check [--root FOLDER]        runs the tests of every area without a mutant
    python -m tests.mutation table BEFORE AFTER           a line for each area, and the mutants that only BEFORE has killed

A run puts each mutant into its file, runs the tests of the area one file after the other for at most SECONDS, and puts the file
back. `--root` is the working tree that is mutated, with an environment of its own at `.venv`; nothing else may use it meanwhile.
A mutant is killed if a test fails; it survives if none does in time. Tests that fail without any mutant make an area's result
worthless: `check` tries each area as it is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tests.mutation.areas import AREAS
from tests.mutation.mutants import Mutant, draw

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = Path(__file__).parent / "mutants.json"
SECONDS = 60.0
_BY_NAME = {area.name: area for area in AREAS}
_FAILED, _TIMED_OUT = 1, -1


def read() -> list[Mutant]:
    """The committed ones."""
    return [Mutant(**entry) for entry in json.loads(MUTANTS.read_text())]


def tried(root: Path, files: Sequence[str], seconds: float, markers: str) -> tuple[int, float]:
    """The exit code of pytest, which stops at the first failure, and how long it took; _TIMED_OUT if it was stopped."""
    python = root / ".venv" / "bin" / "python"
    command = [str(python), "-m", "pytest", "-x", "--durations=0", "-p", "no:cacheprovider", "-n", "0", "-m", markers, *files]
    begin = time.monotonic()
    process = subprocess.Popen(
        command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, env=_environment()
    )
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        code = _TIMED_OUT
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return code, time.monotonic() - begin


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # a mutant's bytecode must not outlive it


def run(results: Path, root: Path, seconds: float, part: str, markers: str) -> int:
    """Try every mutant that has no result yet."""
    done: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    number, parts = map(int, part.split("/"))
    for place, mutant in enumerate(read()):
        if place % parts != number or (name := _name(mutant)) in done:
            continue
        files = _BY_NAME[mutant.area].test_files(root)
        done[name] = _outcome(mutant, partial(tried, root, files, seconds, markers), root)
        results.write_text(json.dumps(done, indent=1, sort_keys=True) + "\n")
        print(f"{done[name]['result']:9} {done[name]['seconds']:6.1f} {name}", flush=True)
    return 0


def check(root: Path, seconds: float, markers: str) -> int:
    """The exit code: whether the tests of an area fail as they are."""
    codes = {area.name: tried(root, area.test_files(root), seconds, markers) for area in AREAS}
    for name, (code, took) in codes.items():
        print(f"{'fails' if code not in (0, _TIMED_OUT) else 'passes'} {took:6.1f} {name}")
    return int(any(code not in (0, _TIMED_OUT) for code, _ in codes.values()))


def _outcome(mutant: Mutant, test: Callable[[], tuple[int, float]], root: Path) -> dict[str, Any]:
    path = root / mutant.path
    original = path.read_bytes()
    try:
        path.write_text(mutant.applied(original.decode()))
    except (ValueError, OSError) as error:
        return {"result": "gone", "seconds": 0.0, "why": str(error)}
    try:
        code, took = test()
    finally:
        path.write_bytes(original)
    return {"result": {0: "survived", _TIMED_OUT: "survived"}.get(code, "killed"), "code": code, "seconds": round(took, 1)}


def _name(mutant: Mutant) -> str:
    return f"{mutant.area}: {mutant.path}:{mutant.line}:{mutant.column} {mutant.before} -> {mutant.after}"


def table(before: Path, after: Path) -> str:
    """Mutants of each area, and how many were killed before and after; then those that only the first run has killed."""
    first, second = (json.loads(path.read_text()) for path in (before, after))
    both = [name for name in first if name in second and "gone" not in (first[name]["result"], second[name]["result"])]
    counts: dict[str, Counter[str]] = {}
    for name in both:
        of = counts.setdefault(name.partition(":")[0], Counter())
        of["mutants"] += 1
        of["before"] += first[name]["result"] == "killed"
        of["after"] += second[name]["result"] == "killed"
    total = sum(counts.values(), Counter())
    lines = ["| area | mutants | killed before | killed after |", "|---|---|---|---|"]
    lines += [f"| {area} | {of['mutants']} | {of['before']} | {of['after']} |" for area, of in (*counts.items(), ("all", total))]
    lost = [name for name in both if (first[name]["result"], second[name]["result"]) == ("killed", "survived")]
    return "\n".join([*lines, "", "Killed before only:", *lost])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing, running, checking, comparing = (commands.add_parser(name) for name in ("draw", "run", "check", "table"))
    drawing.add_argument("--seed", type=int, default=43)
    running.add_argument("results", type=Path)
    running.add_argument("--part", default="0/1", help="which of how many parts, for several runs beside each other: 0/2 and 1/2")
    for command in (running, checking):
        command.add_argument("--root", type=Path, default=ROOT)
        command.add_argument("--seconds", type=float, default=SECONDS)
        command.add_argument("--markers", default="not parity and not extended", help="pytest's -m: which tests are run")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "run":
        return run(given.results, given.root.resolve(), given.seconds, given.part, given.markers)
    if given.command == "check":
        return check(given.root.resolve(), given.seconds, given.markers)
    if given.command == "draw":
        MUTANTS.write_text(json.dumps([asdict(mutant) for mutant in draw(ROOT, given.seed)], indent=1) + "\n")
    else:
        print(table(given.before, given.after))
    return 0


if __name__ == "__main__":
    sys.exit(main())
