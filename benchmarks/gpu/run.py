"""Runs sections as processes of their own, and keeps the results file up to date."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.sections import SECTIONS
from benchmarks.gpu.tasks import Figure

GRACE = 40.0  # seconds beyond its own after which a section's process is ended
LEAST = 15.0  # seconds that a section needs at least: jax alone takes some to start
ERROR_OUTPUT = 1500  # characters kept of what a process that died wrote on stderr
TRIALS = ("mosaic", "parity", "decode")  # sections that show whether the GPU's kernels run at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run.

    Attributes:
        sections: names, in order.
        sizes: name of what is measured.
        output: the results file.
        seconds: for all sections together.
        flags: more flags for the sections' processes.
        earlier: what the file holds that is to stay; {} for nothing.
        scratch: a directory that its sections share; None for none.
    """

    sections: Sequence[str]
    sizes: str
    output: Path
    seconds: float
    flags: Sequence[str] = ()
    earlier: Figure = field(default_factory=dict)
    scratch: Path | None = None


def run(plan: Plan) -> Figure:
    """Run the sections and write the file after each. Returns what is in the file."""
    with tempfile.TemporaryDirectory() as scratch:
        return _run(replace(plan, scratch=Path(scratch)))


def _run(plan: Plan) -> Figure:
    deadline = time.monotonic() + plan.seconds
    command = " ".join(["python -m benchmarks.gpu", *sys.argv[1:]])
    result: Figure = plan.earlier | {
        "command": " && ".join([*([plan.earlier["command"]] if plan.earlier else []), command]),
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "sizes": plan.sizes,
        "sections": dict(plan.earlier.get("sections", {})),
    }
    if "only_xla_after" in result:
        plan = replace(plan, flags=(*plan.flags, "--only-xla"))
    stopped = ""
    for name in plan.sections:
        left = deadline - time.monotonic()
        stopped = stopped or ("no time was left for it" if left <= LEAST else "")
        print(f"{name}: {SECTIONS[name].about} ({left:.0f} s are left)", flush=True)
        found: Figure = {"figures": [], "stopped": stopped} if stopped else run_process(plan, name, left)
        result["sections"][name] = found
        print(_outcome(found), flush=True)
        if found.get("error", {}).get("type") == "NoGpuError":
            stopped = "there is no GPU"
        if name in TRIALS and crashed(found):
            result["only_xla_after"] = name
            print("  a kernel crashed or hung: what follows runs in XLA", flush=True)
            plan = replace(plan, flags=(*plan.flags, "--only-xla"))
        plan.output.parent.mkdir(parents=True, exist_ok=True)
        plan.output.write_text(json.dumps(result, indent=1) + "\n")
    return result


def unmeasured(earlier: Figure) -> list[str]:
    """The sections that a file has no figures of, in order, with those that they need in the same run."""
    sections = earlier.get("sections", {})
    missing = {name for name in SECTIONS if not sections.get(name, {}).get("figures")}
    return [name for name in SECTIONS if name in missing | {SECTIONS[one].after for one in missing}]


def earlier_results(path: Path, sizes: str) -> Figure:
    """What a file holds; {} if there is none, or it is of other sizes."""
    if not path.exists():
        return {}
    found: Figure = json.loads(path.read_text())
    return found if found["sizes"] == sizes else {}


def run_process(plan: Plan, name: str, left: float) -> Figure:
    """Run one section with what is `left` of the time. Returns its figures and how it ended."""
    # How long a rehearsal takes says nothing: it may go on for as long as there is time.
    seconds = left if plan.sizes == "rehearsal" else min(SECTIONS[name].seconds, left)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        into, errors = Path(scratch) / "events", Path(scratch) / "stderr"
        into.touch()
        command = [sys.executable, "-m", "benchmarks.gpu.child", "--section", name, "--sizes", plan.sizes]
        command += ["--into", str(into), "--seconds", str(seconds), *plan.flags]
        command += [] if plan.scratch is None else ["--scratch", str(plan.scratch)]
        with errors.open("w") as stderr:
            process = subprocess.Popen(command, stderr=stderr)
            try:
                code = process.wait(timeout=min(seconds + GRACE, left + GRACE / 2))
            except BaseException as error:  # also when the run is interrupted
                process.kill()
                process.wait()
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                code = None
        found = collect(into.read_text(encoding="utf-8").splitlines())
        if code != 0 and "error" not in found:
            message = "it hung, or took too long, and was ended" if code is None else f"its process ended with code {code}"
            tail = errors.read_text(errors="replace")[-ERROR_OUTPUT:]
            found["error"] = {"type": "process", "message": message, "traceback": tail}
    return {"seconds": time.monotonic() - start, **found}


def collect(lines: Sequence[str]) -> Figure:
    """Put the events of a section's process together: its figures, and "stopped" or "error" if it did not do everything."""
    found: Figure = {"figures": []}
    for line in lines:
        try:
            event: dict[str, Any] = json.loads(line)
        except ValueError:  # the process was ended while it wrote
            continue
        figure = event.pop("figure", None)
        if figure is not None:
            found["figures"].append(figure)
        found |= event
    return found


def crashed(found: Figure) -> bool:
    """Whether a section's process died or hung, or its GPU was lost: CUDA's errors outlast the kernel that made them."""
    return found.get("error", {}).get("type") == "process" or "CUDA_ERROR" in json.dumps(found)


def _outcome(found: Figure) -> str:
    figures = found["figures"]
    wrong = [figure["error"] for figure in figures if "error" in figure]
    parts = [f"  {len(figures) - len(wrong)} figures"]
    if wrong:
        parts.append(f"{len(wrong)} errors, the first {wrong[0]['type']}: {wrong[0]['message'].splitlines()[:1]}")
    if "stopped" in found:
        parts.append(f"stopped: {found['stopped']}")
    if "error" in found:
        parts.append(f"FAILED: {found['error']['message']}\n{found['error']['traceback']}")
    return "; ".join(parts) + (f" ({found['seconds']:.0f} s)" if "seconds" in found else "")
