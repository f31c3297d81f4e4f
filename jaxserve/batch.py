"""The command `python -m jaxserve.batch MODEL -i requests.jsonl -o results.jsonl [flags]`: a file of requests, no server."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import math
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import uvloop
from rich.console import Console

from jaxserve.answering import CHOSEN, LocalAnswerer, job_model, remote_engine, sequences_in_flight, throughput_config
from jaxserve.children import stop_signals
from jaxserve.commands import write_json
from jaxserve.config.check import check_types
from jaxserve.config.fields import EngineConfig, setting
from jaxserve.config.flags import OneLineParser, add_flags, flag_names, from_flags
from jaxserve.engine.client import EngineStats
from jaxserve.errors import ConfigError, InternalError, JaxserveError
from jaxserve.jobs.answers import Answerer
from jaxserve.jobs.cluster import ClusterConfig
from jaxserve.jobs.config import JobConfig
from jaxserve.jobs.display import Display, display
from jaxserve.jobs.files import JobFiles
from jaxserve.jobs.job import Job
from jaxserve.jobs.runner import OnProgress
from jaxserve.jobs.scan import Shard
from jaxserve.jobs.summary import Summary
from jaxserve.jobs.vectors import check_vectors, write_vectors
from jaxserve.logs import set_up_logging
from jaxserve.standard_streams import after_output

_EXIT_FAILURES = 1
_EXIT_ERROR = 2
_EXIT_SIGNAL = 128  # and the signal's number
_ENGINE_PARTS = tuple(get_type_hints(EngineConfig).values())


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """What to work off, and where to write."""

    input: str | None = setting(None, "file of requests: OpenAI's batch format, a JSON object a line", short="-i")
    output: str | None = setting(None, "file that replies are appended to, as they come", short="-o")
    errors: str | None = setting(None, "file for what became of all other lines; for -o results.jsonl, results.errors.jsonl")
    vectors: str | None = setting(None, "file for the vectors of a job of embeddings, once all is done: .npy or .parquet")
    shards: str = setting("1/1", "i/n: only the i-th of n parts of the input, each for a machine of its own, with its own output")
    cost_per_hour: float | None = setting(None, "dollars that an hour of this machine costs: the summary tells what the job did")
    summary_json: str | None = setting(None, "also write the summary to this file, as JSON")

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("input", "output"):
            if not getattr(self, name):
                raise ConfigError(f"{name} is missing: -{name[0]} FILE", param=name)
            if getattr(self, name) == "-":
                raise ConfigError(f"{name} must be a file: a job can be resumed, and a stream cannot", param=name)
        if self.vectors is not None:
            check_vectors(Path(self.vectors))
        if self.cost_per_hour is not None and not 0.0 <= self.cost_per_hour < math.inf:
            raise ConfigError(f"cost_per_hour must be at least 0 and finite, got {self.cost_per_hour}", param="cost_per_hour")

    def files(self) -> JobFiles:
        assert self.input is not None
        assert self.output is not None
        errors, vectors = (None if path is None else Path(path) for path in (self.errors, self.vectors))
        return JobFiles.beside(Path(self.input), Path(self.output), errors, vectors)


@dataclass(slots=True)
class _Interruption:
    """Ends a task at the first signal; commits must not be disturbed by further ones."""

    task: asyncio.Task[Any] | None
    number: int | None = None

    def listen(self) -> None:
        """Take over Ctrl-C, SIGTERM and SIGHUP."""
        for number in stop_signals():
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt, number)

    def _interrupt(self, number: int) -> None:
        if self.number is None and self.task is not None:
            self.number = number
            self.task.cancel()


def main(argv: Sequence[str] | None = None) -> int:
    """Work off a file, or what is left of it; the summary goes to stdout, everything else to stderr.

    Returns the exit code: 0 if every request was answered, 1 if all is done and some of it is in the error file, 2 if the job
    cannot begin or go on, which is one line on stderr; 130, 143 and 129 after Ctrl-C, SIGTERM and SIGHUP.
    """
    set_up_logging("warning")
    try:
        settings = vars(_parser().parse_args(argv))
        batch, job_config = from_flags(BatchConfig, settings), from_flags(JobConfig, settings)
        shard = Shard.parse(batch.shards)
        cluster = from_flags(ClusterConfig, settings)
        engine = _engine_config({name: settings[name] for part in _ENGINE_PARTS for name in flag_names(part)}, cluster)
        job_config = dataclasses.replace(job_config, concurrency=_in_flight(engine, cluster))
        with display(Console(stderr=True)) as shown:
            job = Job(batch.files(), job_model(engine.model), shard=shard, config=job_config, on_scan=shown.scanned)
            with job, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                summary, interrupted = runner.run(_work(job, engine, cluster, shown))
        return _finish(job, summary, interrupted, batch)
    except JaxserveError as error:
        sys.stderr.write(f"jaxserve: {error.message}\n")
        return _EXIT_ERROR
    except KeyboardInterrupt:  # before the job began
        return _EXIT_SIGNAL + signal.SIGINT


async def _work(job: Job, config: EngineConfig, cluster: ClusterConfig, shown: Display) -> tuple[Summary, int | None]:
    interruption = _Interruption(asyncio.current_task())
    interruption.listen()
    if not job.complete:
        try:
            await (_run_on_cluster(job, config, cluster, shown) if cluster.engines else _run_here(job, config, shown))
        except asyncio.CancelledError:
            if interruption.number is None:
                raise
    return job.summary(), interruption.number


async def _run_here(job: Job, config: EngineConfig, shown: Display) -> None:
    async with LocalAnswerer.start(config, shown.started) as answers:
        await _run(job, answers, lambda progress: shown.worked(progress, _kv_use(answers.engine.stats())))


async def _run_on_cluster(job: Job, config: EngineConfig, cluster: ClusterConfig, shown: Display) -> None:
    engines = _ray_data().RayEngines.start(remote_engine(config), cluster, rows=config.scheduler.max_num_seqs)
    async with engines as answers:
        await _run(job, answers, lambda progress: shown.worked(progress, None))


async def _run(job: Job, answers: Answerer, on_progress: OnProgress) -> None:
    try:
        await job.run(answers, on_progress)
    except JaxserveError as error:
        raise InternalError(f"{error.message}; {_left(job)}") from error


def _engine_config(settings: Mapping[str, Any], cluster: ClusterConfig) -> EngineConfig:
    if not cluster.engines:
        return throughput_config(settings)
    shared, given = settings["tensor_parallel_size"], cluster.gpus_per_engine
    if 0 < given < shared:
        raise ConfigError(
            f"gpus_per_engine is {given:g}, but tensor_parallel_size is {shared}: an engine needs a GPU for each part",
            param="gpus_per_engine",
        )
    _ray_data()
    return throughput_config(settings, on_cpu=not given)


def _in_flight(config: EngineConfig, cluster: ClusterConfig) -> int:
    return cluster.sequences(config.scheduler.max_num_seqs) if cluster.engines else sequences_in_flight(config)


def _ray_data() -> Any:
    try:
        return import_module("jaxserve.jobs.ray_data")
    except ImportError as error:
        raise ConfigError("engines needs Ray: pip install 'jaxserve[ray]'", param="engines") from error


def _kv_use(stats: EngineStats) -> float:
    return 1.0 - stats.pages_free / stats.pages_total


def _finish(job: Job, summary: Summary, interrupted: int | None, batch: BatchConfig) -> int:
    sys.stdout.write(summary.text(batch.cost_per_hour) + "\n")
    if batch.summary_json is not None:
        write_json(Path(batch.summary_json), summary.as_dict(batch.cost_per_hour))
    if interrupted is not None:
        sys.stderr.write(f"jaxserve: {signal.Signals(interrupted).name}; {_left(job)}\n")
        return _EXIT_SIGNAL + interrupted
    if batch.vectors is not None:
        count, width = write_vectors(batch.files().output, Path(batch.vectors))
        sys.stdout.write(f"vectors:     {count:,} of {width:,} numbers in {batch.vectors}\n")
    return _EXIT_FAILURES if summary.all_runs.failed or summary.all_runs.invalid else 0


def _left(job: Job) -> str:
    return f"{job.durable:,} of {job.progress.lines:,} lines are done and on the disk, run the same command to go on"


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="python -m jaxserve.batch", description=__doc__, allow_abbrev=False)
    add_flags(parser, BatchConfig, JobConfig, ClusterConfig, *_ENGINE_PARTS, chosen=CHOSEN)
    return parser


if __name__ == "__main__":
    sys.exit(after_output(main()))
