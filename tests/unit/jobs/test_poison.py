"""A line that ends the engine gets an error in the third run of its job, and all others are answered."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from jaxserve.errors import EngineDeadError
from jaxserve.jobs.answers import Answer
from jaxserve.jobs.in_flight import InFlight
from jaxserve.jobs.lines import Line
from tests.unit.jobs.support import QUICK, Echo, files_in, open_job, read, request, write

POISON = {"r7", "r13"}


class Fragile(Echo):
    """An engine that ends when it is given poison; nothing else in it is answered then."""

    def __init__(self) -> None:
        super().__init__(turns=3)
        self.died = False

    async def answer(self, line: Line) -> Answer:
        if line.custom_id in POISON:
            self.asked.append(line.custom_id)
            self.died = True
        reply = await super().answer(line)
        if self.died:
            raise EngineDeadError("gone")
        assert isinstance(reply, Answer)
        return reply


def run_again(folder: Path) -> Fragile:
    """One more run of the job."""
    engine = Fragile()
    with open_job(folder, config=QUICK) as job:
        try:
            asyncio.run(job.run(engine))
        except EngineDeadError:
            assert engine.died
    return engine


def test_lines_that_end_the_engine_are_found_one_by_one(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [request(f"r{number}") for number in range(20)])
    files = files_in(tmp_path)
    runs = 1
    while run_again(tmp_path).died:
        runs += 1
    assert runs <= 2 * len(POISON) + 1
    assert {line["custom_id"] for line in read(files.output)} == {f"r{number}" for number in range(20)} - POISON
    errors = {line["custom_id"]: line["error"]["code"] for line in read(files.errors)}
    assert errors == dict.fromkeys(POISON, "engine_killed_by_request")
    assert not files.running.exists()


def test_suspected_lines_run_last_and_alone(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [request(f"r{number}") for number in range(20)])
    files_in(tmp_path).running.write_text("begin 3\nbegin 5\nend 3\nbegin 9\nbeg")
    most: list[int] = []

    class Watching(Echo):
        async def answer(self, line: Line) -> Answer:
            if line.number in (5, 9):
                most.append(self.active)
            reply = await super().answer(line)
            assert isinstance(reply, Answer)
            return reply

    engine = Watching(turns=3)
    with open_job(tmp_path, config=QUICK) as job:
        asyncio.run(job.run(engine))
    assert set(engine.asked[-2:]) == {"r4", "r8"}
    assert most == [0, 0]
    assert len(engine.asked) == 20


def test_an_orderly_end_suspects_nobody(tmp_path: Path) -> None:
    path = tmp_path / "running"
    first = InFlight(path)
    first.begin(4, alone=False)
    first.close()
    assert not path.exists()
    second = InFlight(path)
    second.begin(4, alone=False)
    second.died()
    second.close()
    third = InFlight(path)
    assert (third.deaths, third.guilty) == ({4: 1}, set())
    third.begin(4, alone=True)
    third.died()
    third.close()
    fourth = InFlight(path)
    assert (fourth.deaths, fourth.guilty) == ({4: 2}, {4})
    fourth.done(4)
    fourth.close()
    assert not path.exists()


@pytest.mark.parametrize("garbage", ["", "begin\n", "begin x\nend 3\ndeaths 1\n", "\x00\x00"])
def test_a_file_that_was_cut_off_is_no_obstacle(tmp_path: Path, garbage: str) -> None:
    path = tmp_path / "running"
    path.write_text(garbage)
    found = InFlight(path)
    assert not found.deaths
    found.close()
