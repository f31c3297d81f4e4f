"""A job that crashes after any operation on its files, with the power cut at that: resumed, it has every line exactly once."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.jobs import journal as journal_module
from jaxserve.jobs import writer as writer_module
from jaxserve.jobs.config import JobConfig
from jaxserve.jobs.journal import Journal
from tests.unit.jobs.support import Echo, files_in, open_job, read, request, run, write

LINES = [b"garbage" if number % 5 == 3 else request(f"r{number % 21}", "x" * number) for number in range(30)] + [b""]
REPLIES = sorted({f"r{number % 21}" for number in range(30) if number % 5 != 3})
SMALL = JobConfig(concurrency=3, window=4, commit_seconds=0.01)


class Crash(Exception):
    """The process is gone: nothing it would do happens any more."""


@dataclass
class Disk:
    """What writing does to a disk, up to the operation with which everything ends.

    A write may be torn; a transaction may be durable or not when the process learns no more of it. `synced` is what a power cut
    leaves of each file at least.
    """

    operations: int
    torn: float
    count: int = 0
    synced: dict[str, int] = field(default_factory=dict)

    @property
    def dead(self) -> bool:
        return self.count > self.operations

    def step(self) -> bool:
        """Whether this operation is the last."""
        if self.dead:
            raise Crash
        self.count += 1
        return self.dead

    def write(self, file: int, data: memoryview) -> int:
        if self.step():
            os.write(file, data[: int(len(data) * self.torn)])
            raise Crash
        return os.write(file, data)

    def fsync(self, file: int) -> None:
        if self.step():
            raise Crash
        self.synced[path_of(file)] = os.fstat(file).st_size

    def ftruncate(self, file: int, length: int) -> None:
        if self.step():
            raise Crash
        os.ftruncate(file, length)
        self.synced[path_of(file)] = min(self.synced.get(path_of(file), 0), length)

    def committing(self, original: Any) -> Any:
        def commit(journal: Journal, *arguments: Any) -> None:
            last = self.step()
            if last and self.torn < 0.5:
                raise Crash
            original(journal, *arguments)
            if last:
                raise Crash

        return commit


def path_of(file: int) -> str:
    return os.readlink(f"/proc/self/fd/{file}")


@contextmanager
def on(disk: Disk) -> Iterator[None]:
    """Let jobs write to it."""
    constants = ("O_RDWR", "O_CREAT", "O_CLOEXEC", "O_RDONLY", "O_DIRECTORY", "SEEK_CUR", "SEEK_SET")
    names = ("open", "close", "lseek", "fstat", *constants)
    stand_in = SimpleNamespace(write=disk.write, fsync=disk.fsync, ftruncate=disk.ftruncate)
    stand_in.__dict__.update({name: getattr(os, name) for name in names})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_module, "os", stand_in)
        patch.setattr(journal_module.Journal, "commit", disk.committing(journal_module.Journal.commit))
        yield


def crash(folder: Path, disk: Disk, lost: float) -> bool:
    """Run until the disk's last operation, then take away a share of what was not synced. False if the job was done before."""
    files = files_in(folder)
    disk.synced.update({str(path): path.stat().st_size for path in (files.output, files.errors) if path.exists()})
    try:
        with on(disk), open_job(folder, config=SMALL) as job:
            asyncio.run(job.run(Echo()))
    except Crash:
        pass
    else:
        return False
    for path in (files.output, files.errors):
        if path.exists():
            size, safe = path.stat().st_size, disk.synced.get(str(path), 0)
            if size > safe:
                os.truncate(path, size - int((size - safe) * lost))
                with path.open("ab") as file:
                    file.write(b"\x00{" * 3)  # blocks that were given to the file, and never written
    return True


crashes = st.tuples(st.integers(0, 25), st.floats(0, 1), st.floats(0, 1))


@settings(max_examples=12, deadline=None)
@given(st.lists(crashes, min_size=1, max_size=5))
def test_no_line_is_lost_repeated_or_torn(attempts: list[tuple[int, float, float]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "in.jsonl", LINES)
        for operations, torn, lost in attempts:
            if not crash(folder, Disk(operations, torn), lost):
                break
        summary = run(folder, Echo(), config=SMALL)
        assert summary.complete
        assert sorted(line["custom_id"] for line in read(folder / "out.jsonl")) == REPLIES
        wrong = [line["line"] for line in read(folder / "out.errors.jsonl")]
        assert len(wrong) == len(set(wrong)) == len(LINES) - 1 - len(REPLIES)
        counts = summary.all_runs
        assert (counts.answered, counts.invalid, counts.blank) == (len(REPLIES), len(wrong), 1)


def test_every_operation_is_survived_in_turn(tmp_path: Path) -> None:
    """One crash after another, each an operation later than the one before."""
    write(tmp_path / "in.jsonl", LINES)
    operations = 0
    while crash(tmp_path, Disk(operations, 0.3 + 0.4 * (operations % 2)), 0.5):
        operations += 1
        assert operations < 60
    assert operations > 8
    assert sorted(line["custom_id"] for line in read(tmp_path / "out.jsonl")) == REPLIES
