"""Jobs over a hash engine, each in a process of its own: `python -m tests.system.batch.driver`.

Reads a JSON object a line from stdin and forks for each, so that a process costs nothing; says the child's pid, then its end.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from jaxserve.clock import RealClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.engine.build import BuiltEngine, EngineReport, MemoryLedger
from jaxserve.engine.intake import Intake
from jaxserve.engine.local import LocalEngine
from jaxserve.engine.phases import NO_TIMES
from jaxserve.errors import JaxserveError
from jaxserve.jobs.config import JobConfig
from jaxserve.jobs.files import JobFiles
from jaxserve.jobs.job import Job
from jaxserve.jobs.storage import JobModel
from server.http.bodies import BodyAnswerer
from tests.support.hash_engine import PAGE, parts, tools_of


@asynccontextmanager
async def hash_client(tokenizer: str, **faults: Any) -> AsyncIterator[LocalEngine]:
    """A hash engine in this process."""
    core, description = parts({"tokenizer": tokenizer, **faults})
    tools = tools_of(description)
    report = EngineReport(description.model, "int32", "none", PAGE, MemoryLedger(0, 0, 0, 0), SchedulerConfig(), (), NO_TIMES)
    built = BuiltEngine(core, Intake.by_rules(tools.tokenizer, description.rules, ""), tools.tokenizer, None, report, RealClock())
    engine = LocalEngine(built, tools.tokenizer, asyncio.get_running_loop())
    engine.run()
    try:
        yield engine
    finally:
        await engine.drain(0.0)


async def work(given: Mapping[str, Any]) -> str:
    """Run a job to its end. Returns its summary as JSON, or the error that ended it."""
    if "file_bytes" in given:  # the disk is full beyond
        resource.setrlimit(resource.RLIMIT_FSIZE, (given["file_bytes"], resource.RLIM_INFINITY))
    files = JobFiles.beside(Path(given["input"]), Path(given["output"]))
    config = JobConfig(concurrency=24, window=100, commit_seconds=0.05)
    try:
        with Job(files, JobModel("hash", "1"), config=config) as job:
            async with hash_client(given["tokenizer"]) as client:
                summary = await job.run(BodyAnswerer(client))
    except JaxserveError as error:
        return json.dumps({"error": error.message})
    return json.dumps(summary.as_dict())


def main() -> None:
    """Fork for each line, and wait for the child."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            print(asyncio.run(work(json.loads(line))), flush=True)
            os._exit(0)
        print(child, flush=True)
        os.waitpid(child, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    main()
