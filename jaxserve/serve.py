"""The door `python -m jaxserve.serve [MODEL_DIR] [flags]`: one model over HTTP and gRPC."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from importlib.metadata import version
from typing import get_type_hints

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from jaxserve.config.fields import EngineConfig, ServerConfig
from jaxserve.config.flags import add_flags
from jaxserve.engine.build import EngineReport
from jaxserve.engine.local import LocalEngine
from jaxserve.errors import JaxserveError
from jaxserve.executor.programs import Progress
from server.run import Addresses, check_ports, serve

_EXIT_ERROR = 2
_EXIT_INTERRUPTED = 130
_LINE_SECONDS = 2.0


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until told to stop. Returns the exit code; whatever keeps the server from starting is one line on stderr."""
    arguments = _parser().parse_args(argv)
    try:
        engine_config, config = _configs(arguments)
        _set_up_logging(config.log_level)
        check_ports(config)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(engine_config, config))
    except JaxserveError as error:
        print(f"jaxserve: {error.message}", file=sys.stderr)
        return _EXIT_ERROR
    except KeyboardInterrupt:  # before the servers took over the signals
        return _EXIT_INTERRUPTED
    return 0


async def _run(engine_config: EngineConfig, config: ServerConfig) -> None:
    with _progress() as progress:
        engine = await LocalEngine.start(engine_config, progress)
    print(_banner(engine.report), file=sys.stderr, flush=True)
    await serve(engine, config, _say_ready)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m jaxserve.serve", description="Serve a model over HTTP and gRPC.")
    add_flags(parser, *get_type_hints(EngineConfig).values(), ServerConfig)
    return parser


def _configs(arguments: argparse.Namespace) -> tuple[EngineConfig, ServerConfig]:
    settings = vars(arguments)
    server = {item.name: settings.pop(item.name) for item in fields(ServerConfig)}
    return EngineConfig.from_settings({**settings, "tenant_keys": server["keys"]}), ServerConfig(**server)


def _set_up_logging(level: str) -> None:
    """Our own messages from `level` on, libraries' warnings, all on stderr."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name in ("jaxserve", "server"):
        logging.getLogger(name).setLevel(level.upper())


def _say_ready(addresses: Addresses) -> None:
    """The one line on stdout, for people and for programs that wait for it."""
    print(f"ready: {addresses.http} {addresses.grpc}", flush=True)


def _banner(report: EngineReport) -> str:
    model, memory = report.model, report.memory
    workspace = f"workspace {_size(memory.temporary)}"
    return "\n".join(
        (
            f"jaxserve {version('jaxserve')}",
            f"  model    {model.name}: {model.architecture}, {model.parameters / 1e6:,.1f}M parameters in {model.dtype}",
            f"  context  {model.max_model_len:,} tokens a request, {memory.kv_tokens:,} in the KV cache",
            f"  mesh     {report.mesh}",
            f"  memory   a device: weights {_size(memory.weights)}, KV cache {_size(memory.kv_cache)}, {workspace}",
            f"  pages    {report.page_size} tokens each, in {report.kv_dtype}",
            f"  buckets  {' '.join(report.buckets)} (tokens x rows)",
            f"  start    weights in {report.load_seconds:.1f} s, programs compiled in {report.compile_seconds:.1f} s",
        )
    )


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


@contextmanager
def _progress() -> Iterator[Progress]:
    """Where loading and compiling report to: bars on a terminal, lines in a log."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=console) as bars:
        yield _Terminal(bars)


class _Terminal:
    """A bar for each thing that takes time."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total)
        self._bars.update(self._tasks[what], completed=done)


class _Lines:
    """A line now and then, and one when a thing is done."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done == total or now - self._last >= _LINE_SECONDS:
            self._last = now
            print(f"{what}: {done}/{total}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
