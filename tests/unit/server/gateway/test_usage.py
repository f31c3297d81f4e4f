"""The usage log and what fills it: every delivered token once, through rotation, full disks and broken streams."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from jaxserve.engine.events import Delta, Event, Finished, Started, Timing, Usage
from jaxserve.errors import ConfigError
from jaxserve.types import FinishReason
from server.gateway import usage as usage_module
from server.gateway.meter import Meter
from server.gateway.usage import UsageEvent, UsageLog


def event(number: int = 0, *, tokens: int = 1, **fields: Any) -> UsageEvent:
    names: dict[str, Any] = {"request_id": "r", "completion_id": f"c{number}", "tenant": "acme", "key_id": "k", "model": "m"}
    return UsageEvent(**names, service_class="", prompt=0, index=0, completion_tokens=tokens, **fields)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}") and line.startswith("{")]


def total(*paths: Path) -> int:
    return sum(line["completion_tokens"] for path in paths for line in lines(path))


@pytest.mark.parametrize("field", ["tenant", "key_id", "model", "service_class", "request_id", "completion_id"])
def test_each_pays_for_itself_though_answers_are_called_alike(tmp_path: Path, field: str) -> None:
    path = tmp_path / "usage.jsonl"
    log = UsageLog(str(path))
    for value in ("one", "another"):
        used = event()
        setattr(used, field, value)
        log.add(used)
    log.close()
    assert {line[field]: line["completion_tokens"] for line in lines(path)} == {"one": 1, "another": 1}


def test_events_are_lines_and_those_of_a_sequence_that_wait_are_one(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    path.write_text("{}\n")
    log = UsageLog(str(path))
    log.add(event(prompt_tokens=7, cached_tokens=3))
    for _ in range(9):
        log.add(event())
    log.add(event(tokens=0, final=True, reason="stop"))
    log.add(event(tokens=0))  # older, and waits again after a full disk
    log.add(event(1))
    log.close()
    _, first, second = lines(path)
    assert first.pop("time").endswith("Z")
    assert first == {
        "request_id": "r",
        "completion_id": "c0",
        "tenant": "acme",
        "key_id": "k",
        "model": "m",
        "service_class": "",
        "prompt": 0,
        "index": 0,
        "prompt_tokens": 7,
        "cached_tokens": 3,
        "completion_tokens": 10,
        "final": True,
        "reason": "stop",
    }
    assert (second["completion_id"], second["completion_tokens"], second["final"]) == ("c1", 1, False)
    assert log.lost_tokens == 0


def test_a_new_file_is_its_owners(tmp_path: Path) -> None:
    UsageLog(str(tmp_path / "usage.jsonl")).close()
    assert (tmp_path / "usage.jsonl").stat().st_mode & 0o077 == 0


def test_a_file_that_is_moved_away_is_followed_by_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_module, "FLUSH_SECONDS", 0.005)
    path, moved = tmp_path / "usage.jsonl", tmp_path / "usage.jsonl.1"
    log = UsageLog(str(path))
    log.add(event(1, tokens=5))
    while total(path) < 5:
        time.sleep(0.001)
    path.rename(moved)
    log.add(event(2, tokens=6))
    log.close()
    assert (total(moved), total(path)) == (5, 6)


def test_two_processes_may_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    logs = [UsageLog(str(path)) for _ in range(2)]
    for number in range(200):
        logs[number % 2].add(event(number))
    for log in logs:
        log.close()
    assert sorted(line["completion_id"] for line in lines(path)) == sorted(f"c{number}" for number in range(200))


def test_what_a_full_disk_does_not_take_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that takes a few bytes more at each try, then all."""
    path = tmp_path / "usage.jsonl"
    write, room = os.write, iter([0, 10, 300, 301, 2])
    tries: list[int] = []

    def little(descriptor: int, data: bytes) -> int:
        taken = next(room, len(data))
        tries.append(taken)
        if taken == 0:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:taken])

    monkeypatch.setattr(os, "write", little)
    monkeypatch.setattr(usage_module, "FLUSH_SECONDS", 0.005)
    log = UsageLog(str(path))
    for number in range(4):
        log.add(event(number, tokens=number + 1))
    while len(tries) < 6:
        log.add(event(9, tokens=0))
    log.close()
    monkeypatch.undo()
    assert total(path) == 10
    assert sum(line["completion_tokens"] == 4 for line in lines(path)) == 1
    assert caplog.text.count("cannot be written") == 1


def test_what_a_full_disk_never_takes_is_lost_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    told: list[int] = []
    log = UsageLog(str(tmp_path / "usage.jsonl"), told.append)
    monkeypatch.setattr(os, "write", none)
    log.add(event(0, tokens=3))
    log.add(event(1, tokens=4))
    log.close()
    assert log.lost_tokens == sum(told) == 7
    assert "7 delivered tokens" in caplog.text


def test_beyond_its_bound_tokens_are_lost_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(usage_module, "MAX_WAITING", 2)
    monkeypatch.setattr(usage_module, "FLUSH_SECONDS", 60.0)
    told: list[int] = []
    log = UsageLog(str(tmp_path / "usage.jsonl"), told.append)
    for number in (0, 1, 2, 2, 1):
        log.add(event(number, tokens=3))
    log.close()
    assert (total(tmp_path / "usage.jsonl"), log.lost_tokens, sum(told)) == (9, 6, 6)
    assert "6 delivered tokens" in caplog.text


@pytest.mark.parametrize("name", ["nowhere/usage.jsonl", "nowhere\0"])
def test_a_file_that_cannot_be_had_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"usage_log: cannot append to .*nowhere") as info:
        UsageLog(str(tmp_path / name))
    assert info.value.param == "usage_log"


class Metered:
    """A meter and what it wrote."""

    def __init__(self) -> None:
        self.written: list[UsageEvent] = []
        self.meter = Meter(self._event, self.written.append)

    def _event(self, prompt: int, index: int) -> UsageEvent:
        made = event(tokens=0)
        made.prompt, made.index = prompt, index
        return made

    def passed(self, *events: Event, prompt: int = 0, sequences: int = 1) -> None:
        for one in events:
            self.meter.passed(prompt, one, sequences)

    @property
    def told(self) -> list[tuple[int, int, int, int, str | None]]:
        return [(one.prompt, one.index, one.prompt_tokens, one.completion_tokens, one.reason) for one in self.written]


STARTED = Started("r", (1, 2, 3), 2, 0.0)


def delta(*tokens: int, index: int = 0) -> Delta:
    return Delta("r", index, "x", tokens, 0)


def finished(index: int = 0) -> Finished:
    return Finished("r", index, FinishReason.LENGTH, None, Usage(3, 1, 2), Timing(0.0, 0.0, 0.0))


def test_tokens_count_when_they_are_handed_over() -> None:
    metered = Metered()
    metered.passed(STARTED, delta(5, 6))
    assert metered.told == [(0, 0, 3, 0, None)]
    assert metered.written[0].cached_tokens == 2
    metered.meter.handed()
    metered.meter.handed()
    metered.passed(delta(7), finished())
    metered.meter.handed()
    metered.meter.close("disconnected")
    assert metered.told[1:] == [(0, 0, 0, 2, None), (0, 0, 0, 1, "length")]
    assert [one.final for one in metered.written] == [False, False, True]


def test_what_breaks_off_on_its_way_does_not_count() -> None:
    metered = Metered()
    metered.passed(STARTED, sequences=2)
    metered.passed(delta(5), delta(6, index=1), sequences=2)
    metered.meter.handed()
    metered.passed(delta(7), finished(1))
    metered.meter.broke_off()
    metered.meter.handed()
    metered.meter.close("engine_dead")
    assert metered.told[1:] == [(0, 0, 0, 1, None), (0, 1, 0, 1, None), (0, 0, 0, 0, "engine_dead"), (0, 1, 0, 0, "engine_dead")]
    assert sum(one.final for one in metered.written) == 2


def test_prompts_are_apart() -> None:
    metered = Metered()
    for prompt in (0, 1):
        metered.passed(STARTED, delta(5), finished(), prompt=prompt)
    metered.meter.handed()
    metered.meter.close("disconnected")
    assert metered.told == [(0, 0, 3, 0, None), (1, 0, 3, 0, None), (0, 0, 0, 1, "length"), (1, 0, 0, 1, "length")]


def test_what_never_started_leaves_nothing() -> None:
    metered = Metered()
    metered.meter.close("queue_full")
    assert metered.written == []
