"""Files of metrics on a disk that is or becomes full."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import values as prometheus_values
from prometheus_client.mmap_dict import MmapedDict

from jaxserve.metrics.instruments import Instruments
from jaxserve.metrics.shared import SharedValues, carry, read_shared, remove_process

MANY = [f"key {number} " + "x" * 200 for number in range(1000)]  # three times what a new file holds


Open = Callable[[Path], SharedValues]


@pytest.fixture
def open_values() -> Iterator[Open]:
    opened: list[SharedValues] = []

    def open_one(path: Path) -> SharedValues:
        opened.append(SharedValues(str(path)))
        return opened[-1]

    yield open_one
    for values in opened:
        values.close()


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", no_space)


def write_all(values: SharedValues) -> None:
    for number, key in enumerate(MANY):
        values.write_value(key, float(number), 0.0)


def content(path: Path) -> dict[str, float]:
    return {key: value for key, value, *_ in MmapedDict.read_all_values_from_file(str(path))}


def test_files_have_no_holes(tmp_path: Path, open_values: Open) -> None:
    values = open_values(tmp_path / "counter_1.db")
    for write in (lambda: None, lambda: write_all(values)):
        write()
        status = os.stat(tmp_path / "counter_1.db")
        assert status.st_blocks * 512 >= status.st_size == values._capacity
    assert content(tmp_path / "counter_1.db") == {key: float(number) for number, key in enumerate(MANY)}
    again = open_values(tmp_path / "counter_1.db")
    assert again.read_value(MANY[-1]) == (999.0, 0.0)


@pytest.mark.usefixtures("full_disk")
def test_new_file_without_space_is_kept_in_memory(tmp_path: Path, open_values: Open, caplog: pytest.LogCaptureFixture) -> None:
    values = open_values(tmp_path / "counter_1.db")
    write_all(values)
    assert values.in_memory
    assert [values.read_value(key)[0] for key in MANY] == list(map(float, range(1000)))
    assert not list(tmp_path.iterdir())
    assert [record.message for record in caplog.records] == [
        f"metrics of this process are no longer shared: cannot allocate {tmp_path}/counter_1.db: No space left on device"
    ]


def test_file_that_cannot_grow_goes_on_in_memory_and_moves_on(
    tmp_path: Path, open_values: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = open_values(tmp_path / "counter_1.db")
    values.write_value("first", 1.0, 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", no_space)
        write_all(values)
        assert values.in_memory
    assert content(tmp_path / "counter_1.db")["first"] == 1.0
    assert values.read_value(MANY[-1]) == (999.0, 0.0)
    (tmp_path / "other").mkdir()
    carry(values, tmp_path / "other")
    assert not values.in_memory
    assert content(tmp_path / "other" / "counter_1.db")[MANY[-1]] == 999.0


@pytest.mark.usefixtures("full_disk")
def test_dead_process_keeps_its_file_if_there_is_no_space_to_merge_it(tmp_path: Path) -> None:
    own = MmapedDict(str(tmp_path / "counter_7.db"))
    own.write_value('["a_total", "a_total", {}, "help"]', 3.0, 0.0)
    own.close()
    (tmp_path / "gauge_livesum_7.db").write_bytes(bytes(64))
    with pytest.raises(OSError, match="No space left"):
        remove_process(tmp_path, 7)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counter_7.db"]
    assert [sample.value for family in read_shared(tmp_path) for sample in family.samples] == [3.0]


def test_prometheus_client_uses_these_files() -> None:
    Instruments()
    assert prometheus_values.MmapedDict is SharedValues  # type: ignore[attr-defined]
