"""Whole jobs: what becomes of lines, what is resumed, what is refused."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jaxserve.errors import ConfigError, EngineDeadError, InternalError, QueueFullError
from jaxserve.jobs.answers import Answer, NoAnswer
from jaxserve.jobs.config import JobConfig
from jaxserve.jobs.files import JobFiles
from jaxserve.jobs.job import Job
from jaxserve.jobs.lines import Line
from jaxserve.jobs.reader import Read
from jaxserve.jobs.scan import Shard
from jaxserve.jobs.storage import JobModel, Storage
from jaxserve.jobs.summary import JobProgress, Summary
from jaxserve.jobs.writer import StorageError
from tests.unit.jobs.support import MODEL, QUICK, Echo, Stuck, files_in, ids, interrupt, open_job, read, request, run, write


def many(folder: Path, count: int) -> list[str]:
    names = [f"r{number}" for number in range(count)]
    write(folder / "in.jsonl", [request(name, f"text {name}") for name in names])
    return names


def test_every_request_is_answered_in_openais_shape(tmp_path: Path) -> None:
    names = many(tmp_path, 50)
    summary = run(tmp_path, Echo())
    found = {line["custom_id"]: line for line in read(tmp_path / "out.jsonl")}
    assert sorted(found) == sorted(names)
    assert len(read(tmp_path / "out.jsonl")) == 50
    one = found["r7"]
    assert set(one) == {"id", "custom_id", "response", "error"}
    assert one["error"] is None
    assert one["response"]["status_code"] == 200
    assert one["response"]["request_id"] == "cmpl-8"
    assert one["response"]["body"]["choices"] == [{"text": "text r7"}]
    assert len({line["id"] for line in found.values()}) == 50
    assert all(name.startswith("batch_req_") for name in (line["id"] for line in found.values()))
    assert read(tmp_path / "out.errors.jsonl") == []
    assert summary.complete
    assert (summary.lines, summary.runs, summary.all_runs.answered) == (50, 1, 50)
    assert (summary.run.prompt_tokens, summary.run.cached_tokens, summary.run.completion_tokens) == (250, 150, 100)
    assert summary.run.answering_seconds > 0


def test_bad_lines_go_to_the_error_file_and_stop_nothing(tmp_path: Path) -> None:
    good = request("good")
    lines = [
        good,
        b"",
        b"{not json",
        b'\xff{"custom_id": "x"}',
        b"[1]",
        {"method": "POST", "url": "/v1/completions", "body": {}},
        request(7),
        request(""),
        {**request("get"), "method": "GET"},
        {**request("no url"), "url": None},
        {key: value for key, value in request("no body").items() if key != "body"},
        {**request("list"), "body": []},
        request("good", "again"),
        b"[" * 100_000,
        b"   \r",
        request("last"),
    ]
    write(tmp_path / "in.jsonl", lines)
    summary = run(tmp_path, Echo())
    assert sorted(line["custom_id"] for line in read(tmp_path / "out.jsonl")) == ["good", "last"]
    errors = sorted(read(tmp_path / "out.errors.jsonl"), key=lambda line: line["line"])
    told = [(line["line"], line["custom_id"], line["error"]["code"]) for line in errors]
    assert told == [
        (3, None, "invalid_json"),
        (4, None, "invalid_json"),
        (5, None, "invalid_json"),
        (6, None, "invalid_custom_id"),
        (7, None, "invalid_custom_id"),
        (8, None, "invalid_custom_id"),
        (9, "get", "invalid_method"),
        (10, "no url", "invalid_url"),
        (11, "no body", "invalid_body"),
        (12, "list", "invalid_body"),
        (13, "good", "duplicate_custom_id"),
        (14, None, "invalid_json"),
    ]
    assert all(line["response"] is None for line in errors)
    assert "line 1" in errors[10]["error"]["message"]
    assert "missing" in errors[3]["error"]["message"]
    assert '"GET"' in errors[6]["error"]["message"]
    counts = summary.run
    assert (counts.answered, counts.invalid, counts.blank, counts.failed) == (2, 12, 2, 0)
    assert counts.done == summary.lines == 16
    assert counts.codes["invalid_json"] == 4


def test_answers_other_than_200_go_to_the_error_file(tmp_path: Path) -> None:
    many(tmp_path, 4)
    body = {"error": {"message": "no", "type": "invalid_request_error", "param": None, "code": "context_length_exceeded"}}

    def refuse(line: Line) -> Answer | NoAnswer | None:
        fates: dict[str, Answer | NoAnswer] = {"r1": Answer(400, "", body), "r2": NoAnswer("batch_expired", "too late")}
        if line.custom_id == "r3":
            raise ZeroDivisionError("a bug")
        return fates.get(line.custom_id)

    summary = run(tmp_path, Echo(refuse))
    assert [line["custom_id"] for line in read(tmp_path / "out.jsonl")] == ["r0"]
    errors = {line["custom_id"]: line for line in read(tmp_path / "out.errors.jsonl")}
    assert errors["r1"]["response"] == {"status_code": 400, "request_id": "", "body": body}
    assert (errors["r1"]["line"], errors["r1"]["error"]) == (2, None)
    assert (errors["r2"]["response"], errors["r2"]["error"]) == (None, {"code": "batch_expired", "message": "too late"})
    assert errors["r3"]["error"]["code"] == "internal_error"
    assert summary.complete
    assert summary.run.codes == {"context_length_exceeded": 1, "batch_expired": 1, "internal_error": 1}
    assert (summary.run.failed, summary.run.invalid) == (1, 2)


def test_whatever_is_answered_is_one_line_for_every_reader(tmp_path: Path) -> None:
    text = "".join(map(chr, range(0x20))) + "\x7f\x85\u2028\u2029é😀"
    write(tmp_path / "in.jsonl", [request(f"id {text}", text)])
    run(tmp_path, Echo())
    (line,) = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    found = json.loads(line)
    assert found["custom_id"] == f"id {text}"
    assert found["response"]["body"]["choices"] == [{"text": text}]


def test_a_line_refused_for_the_moment_is_asked_again(tmp_path: Path) -> None:
    many(tmp_path, 3)
    refused: list[str] = []

    def refuse(line: Line) -> None:
        if line.custom_id == "r1" and len(refused) < 2:
            refused.append(line.custom_id)
            raise QueueFullError("full", retry_after=0.0)

    summary = run(tmp_path, Echo(refuse))
    assert summary.run.asked_again == 2
    assert ids(tmp_path) == {"r0": 1, "r1": 1, "r2": 1}
    assert read(tmp_path / "out.errors.jsonl") == []


def test_a_dead_engine_stops_the_job_and_the_same_files_go_on(tmp_path: Path) -> None:
    names = many(tmp_path, 30)

    def refuse(line: Line) -> None:
        if line.custom_id == "r17":
            raise EngineDeadError("gone")

    with pytest.raises(EngineDeadError):
        run(tmp_path, Echo(refuse))
    done = ids(tmp_path)
    assert set(done.values()) == {1}
    assert "r0" in done
    answers = Echo()
    summary = run(tmp_path, answers)
    assert not set(done) & set(answers.asked)
    assert ids(tmp_path) == dict.fromkeys(names, 1)
    assert (summary.runs, summary.run.answered, summary.all_runs.answered) == (2, 30 - len(done), 30)


def test_a_stopped_job_keeps_what_is_done_and_goes_on(tmp_path: Path) -> None:
    names = many(tmp_path, 40)
    first = interrupt(tmp_path, 5)
    assert not first.complete
    assert first.run.answered == 5
    assert len(ids(tmp_path)) == 5
    again = Echo()
    assert run(tmp_path, again).complete
    assert len(again.asked) == 35
    assert ids(tmp_path) == dict.fromkeys(names, 1)


def test_a_cancelled_run_keeps_what_is_done(tmp_path: Path) -> None:
    names = many(tmp_path, 40)

    async def cancelled() -> None:
        def look(progress: JobProgress) -> None:
            if progress.run.done == 6:
                running.cancel()

        running = asyncio.create_task(job.run(Stuck(6), look))
        with pytest.raises(asyncio.CancelledError):
            await running

    with open_job(tmp_path) as job:
        asyncio.run(cancelled())
    assert len(ids(tmp_path)) == 6
    run(tmp_path, Echo())
    assert ids(tmp_path) == dict.fromkeys(names, 1)


def test_impatience_does_not_disturb_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled again and again while it writes down what was done, a run still does so, and then ends as cancelled."""
    names = many(tmp_path, 40)
    original = Storage.commit

    def slow(storage: Storage, *arguments: Any) -> None:
        time.sleep(0.1)
        original(storage, *arguments)

    async def cancelled() -> None:
        running = asyncio.create_task(job.run(Stuck(6), lambda progress: cancel.set() if progress.run.done == 6 else None))
        await cancel.wait()
        monkeypatch.setattr(Storage, "commit", slow)
        for _ in range(5):
            running.cancel()
            await asyncio.sleep(0.005)
        with pytest.raises(asyncio.CancelledError):
            await running

    cancel = asyncio.Event()
    with open_job(tmp_path) as job:
        asyncio.run(cancelled())
        assert job.progress.run.done == 6
    assert len(ids(tmp_path)) == 6
    run(tmp_path, Echo())
    assert ids(tmp_path) == dict.fromkeys(names, 1)


def test_bad_lines_are_told_once_over_several_runs(tmp_path: Path) -> None:
    values = [request(f"r{number % 7}") if number % 3 else b"nonsense" for number in range(60)]
    write(tmp_path / "in.jsonl", [*values, b"", b""])
    config = JobConfig(concurrency=2, window=4, commit_seconds=0.01)
    for _ in range(3):
        interrupt(tmp_path, 1, config=config)
    summary = run(tmp_path, Echo(), config=config)
    lines = [line["line"] for line in read(tmp_path / "out.errors.jsonl")]
    assert len(lines) == len(set(lines)) == 53
    assert sorted(line["custom_id"] for line in read(tmp_path / "out.jsonl")) == [f"r{number}" for number in range(7)]
    assert summary.all_runs.done == summary.lines == 62
    assert summary.runs == 4


def test_a_complete_job_is_not_begun_again(tmp_path: Path) -> None:
    many(tmp_path, 3)
    run(tmp_path, Echo())
    before = (tmp_path / "out.jsonl").read_bytes()
    with open_job(tmp_path) as job:
        assert job.complete
        answers = Echo()
        summary = asyncio.run(job.run(answers))
    assert not answers.asked
    assert summary.complete
    assert (summary.runs, summary.run.done, summary.all_runs.answered) == (1, 0, 3)
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_an_empty_input_is_done_at_once(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"")
    summary = run(tmp_path, Echo())
    assert summary.complete
    assert summary.lines == 0


def test_a_last_line_without_an_end_counts(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(
        b"\xef\xbb\xbf" + json.dumps(request("a")).encode() + b"\r\n" + json.dumps(request("b")).encode()
    )
    assert run(tmp_path, Echo()).lines == 2
    assert ids(tmp_path) == {"a": 1, "b": 1}


def test_no_more_is_in_flight_than_may_be_and_many_are(tmp_path: Path) -> None:
    many(tmp_path, 100)
    answers = Echo(turns=5)
    run(tmp_path, answers)
    assert answers.most == QUICK.concurrency


def test_sequences_count_not_lines(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [request(f"r{number}", n=2) for number in range(20)] + [request("huge", n=50)])
    answers = Echo(turns=5)
    assert run(tmp_path, answers).all_runs.answered == 21
    assert answers.most == 2


def test_a_line_longer_than_allowed_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [request("a"), request("long", "x" * 2**20), request("b", "y" * (2**20 - 200))])
    run(tmp_path, Echo(), config=JobConfig(max_line_mib=1, window=2))
    assert sorted(line["custom_id"] for line in read(tmp_path / "out.jsonl")) == ["a", "b"]
    (error,) = read(tmp_path / "out.errors.jsonl")
    assert (error["line"], error["error"]["code"]) == (2, "line_too_long")


def test_many_bytes_of_results_do_not_wait_for_the_clock(tmp_path: Path) -> None:
    many(tmp_path, 40)
    big = Answer(200, "", {"text": "z" * 2**20})

    async def patient() -> Summary:
        async with asyncio.timeout(120):
            return await job.run(Echo(lambda line: big))

    with open_job(tmp_path, config=JobConfig(concurrency=4, commit_seconds=3600.0)) as job:
        assert asyncio.run(patient()).run.answered == 40


def test_the_window_bounds_what_is_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes, and in lines where they are short."""

    def stop_at(count: int, job: Job, ticks: list[JobProgress], progress: JobProgress) -> None:
        ticks.append(progress)
        if len(ticks) == count:
            job.stop()

    lengths: list[int] = []
    original = Storage.read

    def counted(storage: Storage) -> Read:
        read = original(storage)
        lengths.append(len(read.waiting))
        return read

    monkeypatch.setattr(Storage, "read", counted)
    for text, config, most in (("x" * 2**18, JobConfig(window_mib=1), 4), ("x", JobConfig(window=10), 10)):
        lengths.clear()
        write(tmp_path / "in.jsonl", [request(f"r{number}", text) for number in range(60)])
        with open_job(tmp_path, config=replace(config, concurrency=2, commit_seconds=0.01)) as job:
            asyncio.run(job.run(Stuck(0), partial(stop_at, 5, job, [])))
        assert lengths == [most]
        for path in tmp_path.iterdir():
            path.unlink()


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shards_share_a_file_without_rest(tmp_path: Path, count: int) -> None:
    lines = [request(f"r{number}", "x" * (number * 37 % 400)) for number in range(25)]
    names: list[str] = []
    total = 0
    for index in range(1, count + 1):
        folder = tmp_path / str(index)
        folder.mkdir()
        write(folder / "in.jsonl", lines)
        total += run(folder, Echo(), shard=Shard(index, count)).lines
        names += ids(folder).elements()
    assert total == 25
    assert sorted(names) == sorted(f"r{number}" for number in range(25))


def test_line_numbers_of_a_shard_are_those_of_the_file(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [request(f"r{number}") if number % 2 else b"{" for number in range(20)])
    run(tmp_path, Echo(), shard=Shard(2, 2))
    errors, replies = read(tmp_path / "out.errors.jsonl"), read(tmp_path / "out.jsonl")
    assert {line["line"] % 2 for line in errors} == {1}
    assert all(line["response"]["request_id"] == f"cmpl-{int(line['custom_id'][1:]) + 1}" for line in replies)
    assert 0 < len(replies) < 10


def refused(folder: Path, **options: Any) -> str:
    """The message of a refusal, and what it is about."""
    try:
        open_job(folder, **options).close()
    except ConfigError as error:
        return f"{error.param}: {error.message}"
    return "it was not refused"


def test_another_input_model_or_shard_is_refused(tmp_path: Path) -> None:
    many(tmp_path, 10)
    interrupt(tmp_path, 3)
    assert re.match("shards: .*shard 1/1, not 2/2", refused(tmp_path, shard=Shard(2, 2)))
    assert re.match("model: .*with the model echo, not other", refused(tmp_path, model=JobModel("other", "0123")))
    assert re.match("model: .*another model named echo", refused(tmp_path, model=JobModel("echo", "4567")))
    before = (tmp_path / "out.jsonl").read_bytes()
    with (tmp_path / "in.jsonl").open("ab") as file:
        file.write(b"\n")
    assert re.match("input: .*hash differs", refused(tmp_path))
    many(tmp_path, 10)
    assert run(tmp_path, Echo()).complete  # it was only looked at
    assert (tmp_path / "out.jsonl").read_bytes().startswith(before)


def test_two_processes_cannot_have_a_job(tmp_path: Path) -> None:
    """Neither before its first commit nor after it."""
    many(tmp_path, 3)
    said: list[str] = []

    def look(progress: JobProgress) -> None:
        if progress.run.done == 1 and not said:
            said.append(refused(tmp_path))
            job.stop()

    with open_job(tmp_path) as job:
        assert "another process" in refused(tmp_path)
        asyncio.run(job.run(Stuck(1), look))
    assert "another process" in said[0]
    assert run(tmp_path, Echo()).complete


def test_a_foreign_output_is_not_overwritten(tmp_path: Path) -> None:
    many(tmp_path, 3)
    (tmp_path / "out.jsonl").write_text("precious\n")
    assert "would be overwritten" in refused(tmp_path)
    assert (tmp_path / "out.jsonl").read_text() == "precious\n"
    assert not files_in(tmp_path).journal.exists()


def test_an_output_that_lost_lines_is_refused(tmp_path: Path) -> None:
    many(tmp_path, 10)
    interrupt(tmp_path, 5)
    (tmp_path / "out.jsonl").write_bytes(b"")
    assert "fewer than" in refused(tmp_path)


@pytest.mark.parametrize("content", [b"no database at all, but long enough to be one" * 40, b"SQLite format 3\0" + bytes(100)])
def test_a_broken_journal_is_refused(tmp_path: Path, content: bytes) -> None:
    many(tmp_path, 3)
    files_in(tmp_path).journal.write_bytes(content)
    assert "broken" in refused(tmp_path)


def test_paths_that_cannot_work_are_refused(tmp_path: Path) -> None:
    many(tmp_path, 3)
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    cases = {
        "No such file": JobFiles.beside(tmp_path / "missing.jsonl", output),
        "not a regular file, and must be read twice": JobFiles.beside(Path("/dev/null"), output),
        "Is a directory": JobFiles.beside(tmp_path, output),
        "input and output are one file": JobFiles.beside(source, source),
        "output and errors are one file": JobFiles.beside(source, output, output),
        "errors and journal are one file": JobFiles.beside(source, output, tmp_path / "out.jsonl.job"),
        "cannot write": JobFiles.beside(source, tmp_path / "nowhere" / "out.jsonl"),
        "so the job could not be resumed": JobFiles(source, Path("/dev/null"), tmp_path / "errors", tmp_path / "journal"),
    }
    for words, files in cases.items():
        with pytest.raises(ConfigError, match=words):
            Job(files, MODEL)


def test_an_input_that_changes_under_the_job_stops_it(tmp_path: Path) -> None:
    many(tmp_path, 100)

    def change(line: Line) -> None:
        if line.custom_id == "r5":
            with (tmp_path / "in.jsonl").open("ab") as file:
                file.write(b"{}\n")

    with pytest.raises(StorageError, match="changed while"):
        run(tmp_path, Echo(change))
    assert 0 < len(ids(tmp_path)) < 100


def test_a_storage_error_is_an_internal_one() -> None:
    assert isinstance(StorageError("x"), InternalError)
