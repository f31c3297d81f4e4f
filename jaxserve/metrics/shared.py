"""Metrics of several processes in one directory, as prometheus-client's multiprocess mode keeps them.

A process whose environment had PROMETHEUS_MULTIPROC_DIR when it imported prometheus-client writes its values to memory-mapped
files there, named by kind and process id; whoever answers a scrape adds them up. Values of a dead process stay: counters
must never go back. `remove_process` moves them to one file, whichever number of processes died, and settles what they left open.
(https://prometheus.github.io/client_python/multiprocess/) `carry` takes a live process's file to another directory.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import Metric as Family
from prometheus_client import values as prometheus_values
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector

from jaxserve.metrics import catalogue

_LOG = logging.getLogger(__name__)

DEAD = "dead"  # in the place of a process id
DIED = "process_died"
_INITIAL_SIZE = 1 << 16  # bytes of a new file
_ENTRY_SIZE = 4 + 8 + 16  # bytes of an entry besides its key, at most


class SharedValues(MmapedDict):
    """A file of values whose blocks are all allocated: a write to a hole of it would kill the process if the disk is full.

    If there is no space, values stay in this process's memory: it goes on, and a scrape shows what the file had last.

    Attributes:
        in_memory: whether other processes see no newer values.
    """

    def __init__(self, filename: str, read_mode: bool = False) -> None:
        self.in_memory = False
        try:
            if not read_mode:
                allocate(Path(filename), _INITIAL_SIZE)
            super().__init__(filename, read_mode)  # type: ignore[no-untyped-call]
        except OSError as error:
            if read_mode:
                raise
            self._f, self._fname = open(os.devnull, "rb"), filename  # noqa: SIM115
            self._capacity, self._used = _INITIAL_SIZE, 8  # the first bytes say how many are used
            self._positions: dict[str, int] = {}
            self._keep_in_memory(b"", error)

    def _init_value(self, key: str) -> None:
        while self._used + len(key.encode()) + _ENTRY_SIZE > self._capacity:
            self._grow()
        super()._init_value(key)  # type: ignore[no-untyped-call]

    def _grow(self) -> None:
        self._capacity *= 2
        if not self.in_memory:
            try:
                allocate(Path(self._fname), self._capacity)
                self._m = mmap.mmap(self._f.fileno(), self._capacity)
            except OSError as error:
                self._keep_in_memory(self._m[:], error)
        else:
            self._m = _memory(self._m[:], self._capacity)

    def _keep_in_memory(self, content: bytes, error: OSError) -> None:
        _LOG.warning("metrics of this process are no longer shared: cannot allocate %s: %s", self._fname, error.strerror or error)
        self._m = _memory(content, self._capacity)
        self.in_memory = True


def allocate_files() -> None:
    """Let prometheus-client keep its values in files of SharedValues from now on."""
    prometheus_values.MmapedDict = SharedValues  # type: ignore[misc, attr-defined]


def allocate(path: Path, size: int) -> None:
    """Make a file of at least `size` bytes without holes. Raises OSError without space, and leaves no new file."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:
            there = os.fstat(descriptor).st_size
            os.pwrite(descriptor, bytes(max(size - there, 0)), there)
    except OSError:
        if os.fstat(descriptor).st_size == 0:
            path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _memory(content: bytes, size: int) -> mmap.mmap:
    """Anonymous memory with `content` at its start."""
    memory = mmap.mmap(-1, size)
    memory[: len(content)] = content
    return memory


def read_shared(directory: Path) -> list[Family]:
    """The metrics of all processes together; of gauges, the live ones only."""
    with _locked(directory, fcntl.LOCK_SH):
        files = [str(path) for path in sorted(directory.glob("*.db")) if _counts(path)]
        return list(MultiProcessCollector.merge(files, accumulate=True))


def remove_process(directory: Path, process_id: int) -> None:
    """Keep what a dead process counted, and forget what it held. Its active requests count as aborted from now on."""
    with _locked(directory, fcntl.LOCK_EX):
        for path in directory.glob(f"gauge_*_{process_id}.db"):  # first: the rest needs space
            path.unlink()
        for kind in ("counter", "histogram"):
            own, dead = directory / f"{kind}_{process_id}.db", directory / f"{kind}_{DEAD}.db"
            if own.exists():
                families = MultiProcessCollector.merge([str(path) for path in (dead, own) if path.exists()], accumulate=False)
                _write(dead, list(families))
                own.unlink()


def carry(values: MmapedDict, directory: Path) -> None:
    """Write a file that this process has open to another directory, and go on there; the old one may be gone already.

    Raises OSError. Nothing may write to it in the meantime.
    """
    path = directory / Path(values._fname).name
    new = path.with_suffix(".new")
    new.write_bytes(values._m[:])
    new.replace(path)
    old = values._f
    vars(values).update(vars(SharedValues(str(path))))
    old.close()


def open_requests(families: Sequence[Family]) -> dict[str, float]:
    """Requests that were received and have not ended, by model."""
    left: dict[str, float] = {}
    signs = {
        catalogue.REQUESTS_RECEIVED: 1.0,
        catalogue.REQUESTS_FINISHED: -1.0,
        catalogue.REQUESTS_ABORTED: -1.0,
        catalogue.REQUESTS_REJECTED: -1.0,
    }
    by_series = {metric.series[0]: sign for metric, sign in signs.items()}
    for family in families:
        for sample in family.samples:
            if sample.name in by_series:
                model = sample.labels["model_name"]
                left[model] = left.get(model, 0.0) + by_series[sample.name] * sample.value
    return left


def _write(path: Path, families: Sequence[Family]) -> None:
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    values = SharedValues(str(new))
    for family in families:
        for sample in family.samples:
            key = mmap_key(family.name, sample.name, list(sample.labels), list(sample.labels.values()), family.documentation)
            values.write_value(key, sample.value, 0.0)  # type: ignore[no-untyped-call]
    for model, count in open_requests(families).items():
        metric = catalogue.REQUESTS_ABORTED
        key = mmap_key(metric.full_name, metric.series[0], list(metric.labels), [model, DIED], metric.help)
        values.write_value(key, values.read_value(key)[0] + count, 0.0)  # type: ignore[no-untyped-call]
    values.close()  # type: ignore[no-untyped-call]
    if values.in_memory:
        new.unlink(missing_ok=True)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    new.replace(path)


def _counts(path: Path) -> bool:
    """Whether a file's values are to be shown: a process that was killed leaves its gauges, until it is buried."""
    kind, *_, process = path.stem.split("_")
    return kind != "gauge" or is_alive(int(process))


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def _locked(directory: Path, how: int) -> Iterator[None]:
    """Nobody buries while somebody reads, or values would be missing or counted twice. A full disk has no space for a file."""
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, how)
        yield
    finally:
        os.close(lock)
