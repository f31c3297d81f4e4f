"""A job whose lines are answered at once: `python -m benchmarks.batch_reading FOLDER` prints its memory as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from jaxserve.jobs.answers import Answer
from jaxserve.jobs.config import JobConfig
from jaxserve.jobs.files import JobFiles
from jaxserve.jobs.job import Job
from jaxserve.jobs.lines import Line
from jaxserve.jobs.storage import JobModel
from jaxserve.jobs.summary import JobProgress

_USAGE = {"prompt_tokens": 500, "completion_tokens": 20}


class AtOnce:
    """Every line has the same short answer."""

    async def answer(self, line: Line) -> Answer:
        """Without a wait."""
        return Answer(200, "cmpl-0", {"choices": [{"text": "an answer of some twenty tokens"}], "usage": _USAGE})


def run(folder: Path) -> dict[str, Any]:
    """The job, in this process: lines done and bytes of memory, about every second."""
    process, points = psutil.Process(), []
    start = time.perf_counter()

    def look(done: int) -> None:
        points.append((done, process.memory_info().rss))

    def scanned(read: int, size: int) -> None:
        if read % 2**28 == 0 or read == size:
            look(0)

    def worked(progress: JobProgress) -> None:
        look(progress.all_runs.done)

    look(0)
    files = JobFiles.beside(folder / "in.jsonl", folder / "out.jsonl")
    with Job(files, JobModel("m", "f"), config=JobConfig(concurrency=64), on_scan=scanned) as job:
        opened = time.perf_counter()
        summary = asyncio.run(job.run(AtOnce(), worked))
    assert summary.complete
    return {
        "lines": summary.lines,
        "hash_seconds": round(opened - start, 1),
        "seconds": round(time.perf_counter() - opened, 1),
        "journal_bytes": files.journal.stat().st_size,
        "rss": points,
    }


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]))))
