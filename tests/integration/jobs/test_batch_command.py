"""The command in this process, over a hash engine: flags, refusals, exit codes, signals."""

from __future__ import annotations

import json
import os
import resource
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from jaxserve import batch
from jaxserve.answering import LocalAnswerer, job_model, sequences_in_flight, throughput_config
from jaxserve.config.fields import EngineConfig, ModelConfig, SchedulerConfig
from jaxserve.errors import ConfigError
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from tests.system.batch.driver import hash_client
from tests.unit.jobs.support import read, request

Command = Callable[..., int]
DEFAULTS: dict[str, Any] = {"gpu_memory_fraction": 0.9, "max_num_seqs": None, "max_num_batched_tokens": None, "max_waiting": None}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("checkpoint") / "tiny")


@pytest.fixture
def command(tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the command on in.jsonl and out.jsonl; its engine is a hash engine, slow if `step_seconds` says so."""
    faults: dict[str, Any] = {}

    @asynccontextmanager
    async def start(config: EngineConfig, progress: Any) -> AsyncIterator[LocalAnswerer]:
        progress("hashing", 1, 1)
        async with hash_client(str(checkpoint), **faults) as engine:
            yield LocalAnswerer(engine)

    monkeypatch.setattr(LocalAnswerer, "start", start)
    monkeypatch.setattr(batch, "set_up_logging", lambda level: None)  # would stay for other tests

    def run(*arguments: str, output: str = "out.jsonl", **given: Any) -> int:
        faults.update(given)
        files = ("-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / output))
        return batch.main([str(checkpoint), "--load-format", "dummy", *files, "--commit-seconds", "0.02", *arguments])

    return run


def write(path: Path, *lines: Any) -> None:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))


def good(name: str, **body: Any) -> dict[str, Any]:
    return request(name, "hello", model="hash", max_tokens=4, temperature=0, **body)


def test_exit_codes_tell_whether_all_was_answered(command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "in.jsonl", good("a"), good("b"))
    assert command() == 0
    said = capsys.readouterr()
    assert "2 answered, 0 failed, 0 invalid" in said.out
    assert "requests: 2/2" in said.err
    assert command() == 0  # it is complete already
    assert "complete" in capsys.readouterr().out
    write(tmp_path / "in.jsonl", good("a"), good("b", stream=True))
    assert command("--summary-json", str(tmp_path / "summary.json"), output="other.jsonl") == 1
    assert "1 answered, 1 failed, 0 invalid" in capsys.readouterr().out
    assert json.loads((tmp_path / "summary.json").read_text())["all_runs"]["codes"] == {"invalid_request": 1}
    (error,) = read(tmp_path / "other.errors.jsonl")
    assert error["response"]["status_code"] == 400


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shards", "3/2"], "shards must be i/n"),
        (["--cost-per-hour", "-1"], "cost_per_hour"),
        (["--order", "random"], "order"),
        (["--max-num-seqs", "0"], "max_num_seqs"),
        (["-i", "-"], "input must be a file"),
        (["-o", "-"], "output must be a file"),
        (["-o", ""], "output is missing"),
        (["-i", "/nowhere.jsonl"], "/nowhere.jsonl: No such file"),
        (["-o", "/nowhere/out.jsonl"], "cannot write /nowhere/out.jsonl"),
        (["--window", "x"], "window"),
    ],
)
def test_a_mistake_is_one_line(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    write(tmp_path / "in.jsonl", good("a"))
    assert command(*arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("jaxserve: ")
    assert said.count("\n") == 1
    assert words in said


def test_another_model_or_shard_is_refused(command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "in.jsonl", good("a"))
    assert command() == 0
    assert command("--shards", "1/2") == 2
    assert "begun as shard 1/1" in capsys.readouterr().err
    assert command("--seed", "1") == 2
    assert "another model named tiny" in capsys.readouterr().err
    write(tmp_path / "in.jsonl", good("a"), good("b"))
    assert command() == 2
    assert "hash differs" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_stops_the_job_and_it_goes_on(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals, code: int
) -> None:
    write(tmp_path / "in.jsonl", *(good(f"r{number}") for number in range(400)))
    output = tmp_path / "out.jsonl"

    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (output.exists() and output.stat().st_size):
            time.sleep(0.005)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert command(step_seconds=0.02) == code
    thread.join()
    told = capsys.readouterr()
    assert number.name in told.err
    assert "of 400 lines are done and on the disk, run the same command to go on" in told.err
    assert "lines left" in told.out
    done = len(read(output))
    assert 0 < done < 400
    assert command(step_seconds=0.0) == 0
    assert sorted(line["custom_id"] for line in read(output)) == sorted(f"r{number}" for number in range(400))


def test_a_full_disk_is_told_with_what_is_on_it(command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not with what was answered: results that could not be written are computed again."""
    write(tmp_path / "in.jsonl", *(good(f"r{number}") for number in range(400)))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, before[1]))  # as a disk that has no more for any file
    try:
        assert command("--commit-seconds", "0.5") == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    told = capsys.readouterr().err.splitlines()[-1]
    there = len(read(tmp_path / "out.jsonl"))
    assert 0 <= there < 400
    assert told == (
        f"jaxserve: cannot write the job's files: File too large; {there} of 400 lines are done and on the disk, "
        "run the same command to go on"
    )
    assert command() == 0
    assert sorted(line["custom_id"] for line in read(tmp_path / "out.jsonl")) == sorted(f"r{number}" for number in range(400))


def test_a_dead_engine_is_told_with_what_was_done(command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "in.jsonl", *(good(f"r{number}") for number in range(200)))
    assert command(fails_at=30) == 2
    told = capsys.readouterr().err
    assert "the engine died" in told
    assert "of 200 lines are done and on the disk, run the same command to go on" in told
    assert command(fails_at=None) == 0
    assert len(read(tmp_path / "out.jsonl")) == 200


def test_help_names_what_is_chosen(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command("--help")
    said = " ".join(capsys.readouterr().out.split())
    assert "-i INPUT, --input INPUT" in said
    assert "sequences in one step (default: chosen for the work and the device)" in said


def test_steps_are_large_unless_told_otherwise() -> None:
    chosen = throughput_config(DEFAULTS).scheduler
    assert chosen.max_num_seqs > SchedulerConfig().max_num_seqs
    assert chosen.max_num_batched_tokens >= SchedulerConfig().max_num_batched_tokens
    given = throughput_config({**DEFAULTS, "max_num_seqs": 2000, "max_num_batched_tokens": 2000}).scheduler
    assert (given.max_num_seqs, given.max_num_batched_tokens) == (2000, 2000)
    assert given.max_waiting >= sequences_in_flight(EngineConfig(scheduler=given)) > 2000
    few = throughput_config({**DEFAULTS, "max_num_batched_tokens": 16}).scheduler
    assert few.max_num_seqs == 16


def test_no_more_is_in_flight_than_the_queue_holds() -> None:
    assert sequences_in_flight(EngineConfig(scheduler=SchedulerConfig(max_num_seqs=32, max_waiting=20))) == 20
    assert 32 < sequences_in_flight(EngineConfig(scheduler=SchedulerConfig(max_num_seqs=32))) <= 64


def test_a_models_fingerprint_tells_what_changes_answers(checkpoint: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages }}")

    def of(**settings: Any) -> str:
        return job_model(ModelConfig(model=str(checkpoint), load_format="dummy", **settings)).fingerprint

    prints = [of(), of(dtype="float32"), of(seed=1), of(chat_template=str(template))]
    template.write_text("{{ messages[0] }}")
    prints.append(of(chat_template=str(template)))
    (checkpoint / "generation_config.json").write_text('{"temperature": 0.5}')
    prints.append(of())
    (checkpoint / "generation_config.json").write_text('{"temperature": 0.6}')
    prints.append(of())
    assert of(generation_config="none") == prints[0]
    assert len(set(prints)) == 7
    assert of() == of(max_model_len=100) == of(served_model_name="x")
    assert job_model(ModelConfig(model=str(checkpoint), load_format="dummy", served_model_name=("x",))).name == "x"
    assert job_model(ModelConfig()).name == "pico"
    with pytest.raises(ConfigError, match="no checkpoint directory"):
        job_model(ModelConfig(model="/nowhere"))
