"""In which order requests should be asked: those of `jaxserve.batch` and others, on one engine, in turns.

    python -m benchmarks.batch_order [--repeats 2]

Three files of requests whose order says nothing: `shared` has prompts that begin with one of 32 prefixes of 256 tokens, more
than the KV cache holds; `fits` has 4 such prefixes, which it does hold; `single` has prompts of very different lengths that share
nothing. Seconds are those of answering. Writes benchmarks/results/batch_order.json and prints a table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import patch

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.batch_requests import Workload, requests, write_checkpoint, write_lines
from jaxserve.answering import LocalAnswerer, sequences_in_flight
from jaxserve.config.fields import EngineConfig
from jaxserve.jobs.config import JobConfig
from jaxserve.jobs.files import JobFiles
from jaxserve.jobs.job import Job
from jaxserve.jobs.order import Waiting, by_prefix, in_file_order
from jaxserve.jobs.storage import JobModel

RESULTS = Path(__file__).parent / "results" / "batch_order.json"
ROWS, PAGES, PAGE_SIZE = 16, 257, 16
ALIKE = 64  # bytes of a prompt that a group shares

Order = Callable[[Sequence[Waiting]], list[Waiting]]


def large_groups_first(window: Sequence[Waiting]) -> list[Waiting]:
    """Sorted by how prompts begin, and of those that begin alike the groups with more bytes first."""
    groups = [list(group) for _, group in groupby(by_prefix(window), key=lambda one: one.key[:ALIKE])]
    groups.sort(key=lambda group: -sum(one.size for one in group))
    return [one for group in groups for one in group]


def longest_first(window: Sequence[Waiting]) -> list[Waiting]:
    """Long prompts first."""
    return sorted(window, key=lambda one: -one.size)


def shortest_first(window: Sequence[Waiting]) -> list[Waiting]:
    """Long prompts last."""
    return sorted(window, key=lambda one: one.size)


ORDERS: Mapping[str, Order] = {
    "file": in_file_order,
    "prefix": by_prefix,
    "large groups first": large_groups_first,
    "longest first": longest_first,
    "shortest first": shortest_first,
}
WORKLOADS: Mapping[str, tuple[Workload, Sequence[str]]] = {
    "shared": (
        Workload(requests=128, prefixes=32, prefix_tokens=256, prompt_tokens=32, output_tokens=32),
        ("file", "prefix", "large groups first"),
    ),
    "fits": (
        Workload(requests=96, prefixes=4, prefix_tokens=256, prompt_tokens=32, output_tokens=32),
        ("file", "prefix", "large groups first"),
    ),
    "single": (
        Workload(requests=96, prompt_tokens=96, prompt_sigma=1.0, output_tokens=48, output_sigma=0.6, longest_prompt=512),
        ("file", "prefix", "longest first", "shortest first"),
    ),
}


async def measure(model: Path, scratch: Path, repeats: int, names: Sequence[str]) -> dict[str, Any]:
    """Every order of every file, in turns."""
    config = EngineConfig.from_settings(
        {
            "model": str(model),
            "load_format": "dummy",
            "max_model_len": 1024,
            "max_num_seqs": ROWS,
            "max_num_batched_tokens": 512,
            "num_pages": PAGES,
            "page_size": PAGE_SIZE,
        }
    )
    found: dict[str, Any] = {}
    async with LocalAnswerer.start(config, lambda *_: None) as answers:
        for name in names:
            workload, orders = WORKLOADS[name]
            lines = write_lines(scratch / f"{name}.jsonl", list(requests(workload)), model.name)
            runs: dict[str, list[dict[str, float]]] = {order: [] for order in orders}
            for turn in range(repeats):
                for order in orders if turn % 2 == 0 else reversed(orders):
                    await answers.engine.reset_prefix_cache()
                    output = scratch / f"{name}-{order}-{turn}.jsonl"
                    runs[order].append(await once(answers, config, JobFiles.beside(lines, output), ORDERS[order]))
                    print(name, order, runs[order][-1], flush=True)
            found[name] = runs
    return found


async def once(answers: LocalAnswerer, config: EngineConfig, files: JobFiles, order: Order) -> dict[str, float]:
    """One job."""
    load = os.getloadavg()[0]
    with patch("jaxserve.jobs.reader.ORDERS", {"file": order}):
        job_config = JobConfig(order="file", concurrency=sequences_in_flight(config))
        with Job(files, JobModel("llama150m", ""), config=job_config) as job:
            before = answers.engine.stats().preemptions
            counts = (await job.run(answers)).run
    return {
        "seconds": counts.answering_seconds,
        "cached_share": counts.cached_tokens / counts.prompt_tokens,
        "output_tokens_per_s": counts.completion_tokens / counts.answering_seconds,
        "preemptions": answers.engine.stats().preemptions - before,
        "load_average_before": load,
    }


def table(found: dict[str, Any]) -> Table:
    """Medians, and times the speed of the file's order."""
    shown = Table(title=f"{ROWS} rows, a KV cache of {(PAGES - 1) * PAGE_SIZE} tokens", title_justify="left")
    for column in ("file", "order", "output tokens/s", "of the prompts cached", "times the file's order", "from", "to"):
        shown.add_column(column, justify="right")
    for name, runs in found.items():
        for order, results in runs.items():
            ratios = [base["seconds"] / one["seconds"] for base, one in zip(runs["file"], results, strict=True)]
            rate, share = (machine.median([one[key] for one in results]) for key in ("output_tokens_per_s", "cached_share"))
            cells = (f"{value:.2f}" for value in (machine.median(ratios), min(ratios), max(ratios)))
            shown.add_row(name, order, f"{rate:.0f}", f"{share:.0%}", *cells)
    return shown


def main() -> None:
    """Run and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--files", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        model = write_checkpoint(Path(name) / "llama150m")
        found = asyncio.Runner(loop_factory=uvloop.new_event_loop).run(measure(model, Path(name), given.repeats, given.files))
    report = {**machine.describe(), "command": " ".join(["python -m benchmarks.batch_order", *sys.argv[1:]])}
    report |= {"model": "Llama 150M, dummy weights, bfloat16", "rows": ROWS, "cache_tokens": (PAGES - 1) * PAGE_SIZE}
    RESULTS.write_text(json.dumps({**report, "files": found}, indent=1) + "\n")
    Console(width=120).print(table(found))


if __name__ == "__main__":
    main()
