"""The golden checkpoints (`tests/golden`), tiny ones of every family, through the engine: the greedy tokens of transformers.

Several processes share the GPU, each with its share of the checkpoints: most of the time is compiling.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.gpu.children import environment, read_objects
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.tasks import Figure, Task

CHECKPOINTS = Path(__file__).parents[2] / "tests" / "golden" / "data"
PROCESSES = 16
SECONDS = 180.0  # of all processes
OUTPUT = 800  # characters of a process that failed


def tasks(sizes: Sizes) -> Iterator[Task]:
    """A task a checkpoint. This process never starts jax: the GPU's memory is its children's."""
    names = sorted(path.name for path in CHECKPOINTS.iterdir() if path.is_dir())[: sizes.families]
    with tempfile.TemporaryDirectory() as scratch:
        shares = [names[start::PROCESSES] for start in range(min(PROCESSES, len(names)))]
        started = [(share, _start(Path(scratch) / share[0], sizes.platform, share)) for share in shares]
        deadline = time.monotonic() + SECONDS
        try:
            for share, process in started:
                yield from _figures(Path(scratch) / share[0], share, process, deadline)
        finally:
            for _, process in started:
                process.kill()
                process.wait()


def _start(files: Path, platform: str, share: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.gpu.families", *share, "--platform", platform]
    with files.with_suffix(".out").open("w") as stdout, files.with_suffix(".err").open("w") as stderr:
        return subprocess.Popen(command, stdout=stdout, stderr=stderr, env=environment())


def _figures(files: Path, share: Sequence[str], process: subprocess.Popen[bytes], deadline: float) -> Iterator[Task]:
    try:
        outcome = f"its process ended with code {process.wait(timeout=max(deadline - time.monotonic(), 0))}"
    except subprocess.TimeoutExpired:
        outcome = f"it hung, or {SECONDS:.0f} s were over"
    events = read_objects(files.with_suffix(".out").read_text())
    found = {event["checkpoint"]: event["figure"] for event in events}
    errors = files.with_suffix(".err").read_text(errors="replace")[-OUTPUT:]
    for name in share:
        yield Task({"checkpoint": name}, partial(_of, found, name, f"{outcome}: {errors}"))


def _of(found: Mapping[str, Figure], name: str, outcome: str) -> Figure:
    if name not in found:
        raise RuntimeError(outcome)
    return found[name]


def check(name: str) -> Figure:
    """Greedy tokens of every prompt of a checkpoint beside transformers', in float32."""
    from jaxserve.llm import LLM  # noqa: PLC0415 - after the choice of platform
    from jaxserve.sampling.params import SamplingParams  # noqa: PLC0415

    golden = json.loads((CHECKPOINTS / name / "greedy.json").read_text())
    start = time.perf_counter()
    llm = LLM(
        str(CHECKPOINTS / name),
        dtype="float32",
        max_num_seqs=32,
        max_num_batched_tokens=64,
        num_pages=513,
        max_model_len=256,
        gpu_memory_fraction=0.05,
        before_ready="fewest",
    )
    ready = time.perf_counter()
    params = SamplingParams(temperature=0.0, max_tokens=len(golden["greedy"][0]), ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in golden["prompts"]], params, use_tqdm=False)
    same = [
        sum(1 for _ in _equal(output.outputs[0].token_ids, want)) for output, want in zip(outputs, golden["greedy"], strict=True)
    ]
    return {
        "sequences": len(same),
        "whole": sum(count == len(want) for count, want in zip(same, golden["greedy"], strict=True)),
        "tokens": sum(map(len, golden["greedy"])),
        "same_prefix": sum(same),
        "errors": sorted({str(output.error) for output in outputs if output.error is not None}),
        "start_seconds": ready - start,
        "seconds": time.perf_counter() - ready,
    }


def _equal(got: Sequence[int], want: Sequence[int]) -> Iterator[int]:
    """The tokens before the first that differs."""
    for one, other in zip(got, want, strict=False):
        if one != other:
            return
        yield one


def main() -> None:
    """Check some checkpoints and print a JSON object for each."""
    import jax  # noqa: PLC0415 - the section itself must not start it

    from benchmarks.gpu.child import describe_error  # noqa: PLC0415
    from jaxserve.executor.platform import choose_platform  # noqa: PLC0415

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--platform", choices=("cpu", "gpu"), required=True)
    arguments = parser.parse_args()
    if arguments.platform == "cpu":
        jax.config.update("jax_platforms", "cpu")
    choose_platform()
    for name in arguments.names:
        try:
            figure = check(name)
        except Exception as error:
            figure = {"error": describe_error(error)}
        print(json.dumps({"checkpoint": name, "figure": figure}), flush=True)


if __name__ == "__main__":
    main()
