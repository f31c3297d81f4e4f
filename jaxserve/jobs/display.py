"""What a person sees of a job that runs: bars on a terminal, a line now and then in a log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from jaxserve.commands import Throughput
from jaxserve.jobs.summary import Counts, JobProgress

_LINE_SECONDS = 5.0
_RATE_SECONDS = 10.0  # over which rates are averaged
_READING = "reading the input, MiB"
_REQUESTS = "requests"
_MIB = 2**20


class Display(Protocol):
    """Where a job's steps are shown."""

    def scanned(self, done: int, total: int) -> None:
        """So many bytes of the input were hashed."""
        ...

    def started(self, what: str, done: int, total: int) -> None:
        """So far is the engine's start."""
        ...

    def worked(self, progress: JobProgress, kv_use: float | None) -> None:
        """So far is the job, with this share of the KV cache in use; None where it is not known."""
        ...


@contextmanager
def display(console: Console, now: Callable[[], float] = time.monotonic) -> Iterator[Display]:
    if not console.is_terminal:
        yield Lines(console, now)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[said]}"),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=console) as bars:
        yield Terminal(bars, now)


class Rates:
    def __init__(self) -> None:
        self._seen: deque[tuple[float, Counts]] = deque()

    def see(self, now: float, progress: JobProgress) -> None:
        self._seen.append((now, progress.run))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _RATE_SECONDS:
            self._seen.popleft()

    def said(self, progress: JobProgress, kv_use: float | None) -> str:
        """Failures, tokens a second, cache, time left."""
        (before, first), (now, last) = self._seen[0], self._seen[-1]
        seconds = now - before
        parts = []
        wrong = progress.all_runs.failed + progress.all_runs.invalid
        if wrong:
            parts.append(f"{wrong:,} in the error file")
        if seconds > 0:
            tokens_in = (last.prompt_tokens - first.prompt_tokens) / seconds
            tokens_out = (last.completion_tokens - first.completion_tokens) / seconds
            parts.append(f"tokens/s {tokens_in:,.0f} in {tokens_out:,.0f} out")
        if kv_use is not None:
            parts.append(f"KV {kv_use:.0%}")
        if last.prompt_tokens:
            parts.append(f"prefix hits {last.cached_tokens / last.prompt_tokens:.0%}")
        if last.done and last.answering_seconds > 0:
            left = (progress.lines - progress.all_runs.done) * last.answering_seconds / last.done
            parts.append(f"{_clock(left)} left")
        return ", ".join(parts)


class Lines:
    """A line every few seconds, and one when a step is done."""

    def __init__(self, console: Console, now: Callable[[], float]) -> None:
        self._console = console
        self._now = now
        self._last = now()
        self._ended: set[str] = set()
        self._rates = Rates()
        self._throughput = Throughput(now)

    def scanned(self, done: int, total: int) -> None:
        self.started(_READING, _mib(done), _mib(total))

    def started(self, what: str, done: int, total: int) -> None:
        rate = self._throughput.said(what, done)
        if self._is_time(what, done, total):
            self._say(f"{what}: {done:,}/{total:,}" + (f", {rate}" if rate else ""))

    def worked(self, progress: JobProgress, kv_use: float | None) -> None:
        self._rates.see(self._now(), progress)
        done = progress.all_runs.done
        if self._is_time(_REQUESTS, done, progress.lines):
            self._say(f"{_REQUESTS}: {done:,}/{progress.lines:,}, {self._rates.said(progress, kv_use)}")

    def _is_time(self, what: str, done: int, total: int) -> bool:
        ends = done == total and what not in self._ended
        if ends:
            self._ended.add(what)
        return ends or (done < total and self._now() - self._last >= _LINE_SECONDS)

    def _say(self, text: str) -> None:
        self._last = self._now()
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)


class Terminal:
    def __init__(self, bars: Bars, now: Callable[[], float]) -> None:
        self._bars = bars
        self._now = now
        self._tasks: dict[str, TaskID] = {}
        self._rates = Rates()
        self._throughput = Throughput(now)

    def scanned(self, done: int, total: int) -> None:
        self._show(_READING, _mib(done), _mib(total), "")

    def started(self, what: str, done: int, total: int) -> None:
        self._show(what, done, total, self._throughput.said(what, done))

    def worked(self, progress: JobProgress, kv_use: float | None) -> None:
        self._rates.see(self._now(), progress)
        self._show(_REQUESTS, progress.all_runs.done, progress.lines, self._rates.said(progress, kv_use))

    def _show(self, what: str, done: int, total: int, said: str) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total, said="")
        self._bars.update(self._tasks[what], completed=done, said=said)


def _mib(count: int) -> int:
    """Begun ones count: a small file has one."""
    return -(-count // _MIB)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
