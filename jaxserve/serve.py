"""The command `python -m jaxserve.serve [MODEL_DIR] [flags]`: one model over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from jaxserve.commands import Throughput
from jaxserve.config.fields import EngineConfig
from jaxserve.config.start import Start, read_start
from jaxserve.engine.remote.builders import BuildProgress
from jaxserve.errors import JaxserveError
from jaxserve.logs import set_up_logging
from jaxserve.standard_streams import after_output, drop_unread_output
from server.ports import Addresses
from server.processes.engines import engine_spec, own_engine
from server.processes.supervisor import Announcer, Supervisor, check_ports

_LOG = logging.getLogger("jaxserve.serve")  # it runs as __main__
_EXIT_ERROR = 2
_EXIT_INTERRUPTED = 130
_LINE_SECONDS = 2.0

Say = Callable[[str], None]


def main(argv: Sequence[str] | None = None) -> int:
    log_format = "text"
    try:
        start = read_start(argv, "python -m jaxserve.serve", "Serve a model over HTTP and gRPC.")
        log_format = start.server.log_format
        set_up_logging(start.server.log_level, start.server.log_format)
        for note in start.notes:
            _LOG.info("%s", note)
        check_ports(start.server)
        if start.source.check:
            _check(start)
            return after_output(0)
        else:
            drop_unread_output()
            asyncio.run(_run(start, _sayer(log_format)))
    except JaxserveError as error:
        if log_format == "json":
            _LOG.error("%s", error.message)
        else:
            _print(f"jaxserve: {error.message}")
        return _EXIT_ERROR
    except KeyboardInterrupt:  # before the servers took over the signals
        return _EXIT_INTERRUPTED
    return 0


async def _run(start: Start, say: Say) -> None:
    with ExitStack() as display:
        progress = display.enter_context(_progress(say))

        def say_banner(banner: str) -> None:
            display.close()
            for line in banner.splitlines():
                say(line)
            # Not before: what keeps the server from starting is told in one line.
            for line in start.as_yaml(changed_only=True).splitlines():  # what differs from the defaults: a log tells what ran
                say(f"  setting  {line}")

        announcer = Announcer(progress, say_banner, _say_ready)
        supervisor = Supervisor(own_engine(engine_spec(start.engine, start.server), start.server), start.server, announcer)
        await supervisor.run()


def _check(start: Start) -> None:
    """Do what needs no weights and no programs of what a start does, and print what settings come to."""
    prepare: Callable[[EngineConfig], object] = import_module("jaxserve.engine.preparation").prepare  # has jax: not for servers
    prepare(start.engine)
    print(start.as_yaml(), end="")


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _sayer(log_format: str) -> Say:
    """How lines get to stderr that are for people: as they are, or as messages where a program reads all of it."""
    return (lambda line: _LOG.info("%s", line)) if log_format == "json" else _print


def _say_ready(addresses: Addresses) -> None:
    """The one line on stdout, for people and for programs that wait for it."""
    print(f"ready: {addresses.http} {addresses.grpc}", flush=True)


@contextmanager
def _progress(say: Say) -> Iterator[BuildProgress]:
    console = Console(stderr=True)
    if not console.is_terminal or say is not _print:
        yield _Lines(say)
        return
    rate = TextColumn("{task.fields[rate]}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), rate, TimeElapsedColumn())
    with Bars(*columns, console=console) as bars:
        yield _Terminal(bars)


class _Terminal:
    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}
        self._rates = Throughput()

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total, rate="")
        self._bars.update(self._tasks[what], completed=done, rate=self._rates.said(what, done))


class _Lines:
    def __init__(self, say: Say) -> None:
        self._say = say
        self._last = time.monotonic()
        self._rates = Throughput()

    def __call__(self, what: str, done: int, total: int) -> None:
        now, rate = time.monotonic(), self._rates.said(what, done)
        if done == total or now - self._last >= _LINE_SECONDS:
            self._last = now
            self._say(f"{what}: {done}/{total}" + (f", {rate}" if rate else ""))


if __name__ == "__main__":
    sys.exit(main())
