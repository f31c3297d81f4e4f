"""One small call of each Mosaic kernel under NVIDIA's `compute-sanitizer --tool racecheck`, which watches shared memory.

Each call is a process of its own, all at once: the tool slows a process down many times, and one that it ends costs its kernel
alone. This section never starts jax itself: the GPU's memory is the calls'. The tool comes with the CUDA toolkit.

What it reports of bytes that `cp.async.bulk` brings may be false: it does not follow their barriers (flash-attention found so,
AI/RACECHECK_TMA_HAZARD.md there). Races between threads' own reads and writes are what it knows about.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType

from benchmarks.gpu.children import environment, read_objects
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.tasks import Figure, Task

TOOL = "compute-sanitizer"
TOOLKIT = Path("/usr/local/cuda")
SECONDS = 80.0  # of a call
OUTPUT = 500  # characters of the tool's, of a call that failed
RACES = 3  # that a figure tells of
SUMMARY = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) errors?, (\d+) warnings?\)")
RACE = re.compile(r"=========\s+(?:Error|Warning): (.*)", re.IGNORECASE)
CALLS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "decode attention": ("ragged_paged_attention", "decodes"),
        "prefill attention": ("ragged_paged_attention", "prefix hit"),
        "decode attention that rotates and writes": ("rotate_write_attend", "decodes"),
        "kv_write": ("kv_write", "any slots"),
        "grouped_matmul": ("grouped_matmul", "result of the dtype"),
        "matmul": ("matmul", "words: codes"),
    }
)
"""What is called: an operation, and a case of the parity gate."""


def tasks(sizes: Sizes) -> Iterator[Task]:
    """A call a kernel; nothing where there is no tool."""
    tool = find_tool()
    kernels = [kernel for kernel in sizes.kernels if kernel.startswith("mosaic_gpu")]
    if tool is None or not kernels:
        reason = "its kernels are not run" if tool else f"there is no {TOOL}: it comes with the CUDA toolkit"
        yield Task({}, lambda: {"skipped": reason})
        return
    with ThreadPoolExecutor(len(CALLS)) as pool:
        checks = {call: pool.submit(check, tool, call, kernels[0]) for call in CALLS}
        for call, found in checks.items():
            yield Task({"call": call, "implementation": kernels[0]}, found.result)


def find_tool() -> Path | None:
    """In PATH, the CUDA toolkit or NVIDIA's packages."""
    on_path = shutil.which(TOOL)
    if on_path is not None:
        return Path(on_path)
    toolkits = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ] + [TOOLKIT]
    places = [toolkit / folder / TOOL for toolkit in toolkits for folder in ("bin", TOOL)]
    packages = importlib.util.find_spec("nvidia")
    for folder in () if packages is None else packages.submodule_search_locations or ():
        places += sorted(Path(folder).rglob(TOOL))
    return next((place for place in places if place.is_file() and os.access(place, os.X_OK)), None)


def check(tool: Path, call: str, kernel: str) -> Figure:
    """Run one call under the tool. Raises RuntimeError where it wrote no summary, or the result is wrong."""
    command = [str(tool), "--tool", "racecheck", sys.executable, "-m", "benchmarks.gpu.racecheck", call, kernel]
    # Memory taken at once would also be watched whole, and there is no room for the tool's own.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(), start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)  # the tool's own child, too
        process.wait()
        raise
    found = read_output(output)
    if found is None:
        raise RuntimeError(f"no summary, exit code {process.returncode}: {output[-OUTPUT:]}")
    results = read_objects(output)
    if not results or results[0]["verdict"] != "pass":
        raise RuntimeError(f"the call's result under the tool: {results or output[-OUTPUT:]}")
    return found


def read_output(text: str) -> Figure | None:
    """Counts of the tool's summary and the first races that it names; None if there is no summary."""
    summary = SUMMARY.search(text)
    if summary is None:
        return None
    hazards, errors, warnings = (int(number) for number in summary.groups())
    return {"hazards": hazards, "errors": errors, "warnings": warnings, "races": RACE.findall(text)[:RACES]}


def run_call(call: str, kernel: str) -> Figure:
    """The result of a call by the parity gate, in bfloat16 on jax's default device."""
    import jax  # noqa: PLC0415 - the section itself must not start it

    from jaxserve.executor.platform import choose_platform  # noqa: PLC0415
    from pallas_kernels.parity.operations import OPERATIONS  # noqa: PLC0415
    from pallas_kernels.registry import Target  # noqa: PLC0415

    choose_platform()
    name, wanted = CALLS[call]
    operation = next(operation for operation in OPERATIONS if operation.name == name)
    case = next(case for case in operation.cases if case.name == wanted)
    return asdict(operation.check(case, "bfloat16", kernel, Target.of(jax.devices()[0])))


def main() -> None:
    """Make one call and print its result: what runs under the tool."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("call", choices=CALLS)
    parser.add_argument("kernel")
    arguments = parser.parse_args()
    print(json.dumps(run_call(arguments.call, arguments.kernel)), flush=True)


if __name__ == "__main__":
    main()
