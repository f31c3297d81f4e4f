"""The command `python -m jaxserve.top [URL] [flags]`: a running server's load, as it changes. q ends it."""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
from rich.console import Console
from rich.live import Live

from jaxserve.config.check import check_types
from jaxserve.config.fields import setting
from jaxserve.config.flags import OneLineParser, add_flags, from_flags
from jaxserve.errors import ConfigError, JaxserveError
from jaxserve.metrics import catalogue
from jaxserve.standard_streams import after_output
from jaxserve.terminal.connections import environment_errors, uses_environment
from jaxserve.terminal.metrics_page import Change, Page
from jaxserve.terminal.screen import screen
from jaxserve.terminal.single_keys import Wait, single_keys

_EXIT_ERROR = 2
_SECONDS = 10.0  # to answer
_HISTORY = 60  # rates shown
_WINDOW = 10  # readings that means and quantiles go back
_QUIT = ("q", "Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopConfig:
    """Which server, and how often to look."""

    url: str = setting("http://127.0.0.1:8000", "the server", positional=True)
    interval: float = setting(1.0, "seconds between two readings")
    once: bool = setting(False, "print one screen, of the time between two readings, and leave")

    def __post_init__(self) -> None:
        check_types(self)
        if not 0.1 <= self.interval < math.inf:
            raise ConfigError(f"interval must be at least 0.1 and finite, got {self.interval}", param="interval")


def main(argv: Sequence[str] | None = None) -> int:
    console = Console()
    try:
        settings = vars(_parser().parse_args(argv))
        config = from_flags(TopConfig, settings)
        with environment_errors(config.url):
            client = httpx.Client(base_url=config.url, timeout=_SECONDS, trust_env=uses_environment(config.url))
        with client:
            _watch(client, config, console)
    except JaxserveError as error:
        sys.stderr.write(f"jaxserve: {error.message}\n")
        return _EXIT_ERROR
    except KeyboardInterrupt:
        pass
    return 0


def _watch(client: httpx.Client, config: TopConfig, console: Console) -> None:
    pages = deque([_read(client)], _WINDOW + 1)
    rates: deque[float] = deque(maxlen=_HISTORY)

    def look(wait: Wait) -> bool:
        """After the interval, or not at all if it is to end before."""
        if wait(config.interval) in _QUIT:
            return False
        pages.append(_read(client))
        rates.append(Change(pages[-2], pages[-1]).rate(catalogue.GENERATION_TOKENS))
        return True

    if config.once:
        look(_sleep)
        console.print(screen(config.url, Change(pages[0], pages[-1]), rates))
        return
    if console.is_dumb_terminal:
        raise ConfigError("TERM is dumb, and top moves the cursor: use --once, or another terminal", param="once")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # gives the screen back, as Ctrl-C does
    with single_keys() as wait, Live(console=console, screen=True, auto_refresh=False) as live:
        while look(wait):
            live.update(screen(config.url, Change(pages[0], pages[-1]), rates), refresh=True)


def _sleep(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def _read(client: httpx.Client) -> Page:
    try:
        reply = client.get("/metrics")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"cannot talk to {client.base_url}: {error or type(error).__name__}", param="url") from error
    if reply.status_code != httpx.codes.OK:
        raise ConfigError(f"{client.base_url} has no metrics: /metrics answered {reply.status_code}", param="url")
    try:
        return Page.read(reply.text, time.monotonic())
    except ValueError as error:
        raise ConfigError(f"/metrics of {client.base_url} is not in Prometheus's format: {error}", param="url") from error


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="python -m jaxserve.top", description=__doc__)
    add_flags(parser, TopConfig)
    return parser


if __name__ == "__main__":
    sys.exit(after_output(main()))
