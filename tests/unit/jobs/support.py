"""Jobs in a folder, and somebody who answers them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxserve.jobs.answers import Answer, NoAnswer
from jaxserve.jobs.config import JobConfig
from jaxserve.jobs.files import JobFiles
from jaxserve.jobs.job import Job
from jaxserve.jobs.lines import Line
from jaxserve.jobs.scan import Shard
from jaxserve.jobs.storage import JobModel
from jaxserve.jobs.summary import JobProgress, Summary

MODEL = JobModel("echo", "0123")
QUICK = JobConfig(concurrency=4, window=8, commit_seconds=0.01)


def request(custom_id: Any, text: str = "hello", **body: Any) -> dict[str, Any]:
    """A line's value."""
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {"prompt": text, **body}}


def write(path: Path, values: Iterable[Any]) -> Path:
    """An input; bytes are lines as they are."""
    lines = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def files_in(folder: Path) -> JobFiles:
    return JobFiles.beside(folder / "in.jsonl", folder / "out.jsonl")


def read(path: Path) -> list[dict[str, Any]]:
    """Lines of an output, each of them whole."""
    text = path.read_bytes()
    assert not text or text.endswith(b"\n")
    return [json.loads(line) for line in text.splitlines()]


@dataclass
class Echo:
    """Says prompts back; `asked` are the ids in the order they came, `most` how many were in flight at once.

    `refuse` may raise, or return what is answered instead of the echo.
    """

    refuse: Callable[[Line], Answer | NoAnswer | None] = lambda line: None
    turns: int = 1
    asked: list[str] = field(default_factory=list)
    active: int = 0
    most: int = 0

    async def answer(self, line: Line) -> Answer | NoAnswer:
        self.asked.append(line.custom_id)
        self.active += 1
        self.most = max(self.most, self.active)
        try:
            for _ in range(self.turns):
                await asyncio.sleep(0)
            return self.refuse(line) or self.reply(line)
        finally:
            self.active -= 1

    def reply(self, line: Line) -> Answer:
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}
        return Answer(200, f"cmpl-{line.number}", {"choices": [{"text": line.body.get("prompt")}], "usage": usage})


class Stuck(Echo):
    """Answers some, then nothing any more."""

    def __init__(self, answered: int) -> None:
        super().__init__()
        self.answered = answered

    async def answer(self, line: Line) -> Answer | NoAnswer:
        if len(self.asked) >= self.answered:
            self.asked.append(line.custom_id)
            await asyncio.Event().wait()
        return await super().answer(line)


def open_job(folder: Path, *, shard: Shard | None = None, config: JobConfig = QUICK, model: JobModel = MODEL) -> Job:
    return Job(files_in(folder), model, shard=shard, config=config)


def run(folder: Path, answers: Any, **options: Any) -> Summary:
    """A run of the job in a folder, to its end."""
    with open_job(folder, **options) as job:
        return asyncio.run(job.run(answers))


def interrupt(folder: Path, answered: int, **options: Any) -> Summary:
    """A run that is stopped once some lines are committed."""
    with open_job(folder, **options) as job:

        def look(progress: JobProgress) -> None:
            if progress.run.done >= answered:
                job.stop()

        return asyncio.run(job.run(Stuck(answered), look))


def ids(folder: Path) -> Counter[str]:
    """How often each custom_id is in the output and in the error file."""
    files = files_in(folder)
    return Counter(line["custom_id"] for path in (files.output, files.errors) for line in read(path))
