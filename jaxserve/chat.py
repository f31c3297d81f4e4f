"""The command `python -m jaxserve.chat [WHERE] [flags]`: a conversation with a running server or a model in this process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from jaxserve.config.check import check_types
from jaxserve.config.fields import setting
from jaxserve.config.flags import OneLineParser, add_flags, from_flags
from jaxserve.errors import JaxserveError
from jaxserve.standard_streams import after_output
from jaxserve.terminal.conversation import Conversation, Sampling
from jaxserve.terminal.repl import Repl
from jaxserve.terminal.speakers import LocalSpeaker, ServerSpeaker, Speaker

_EXIT_ERROR = 2
_EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatConfig:
    """Who answers."""

    where: str = setting(
        "http://127.0.0.1:8000", "a server's URL, or a checkpoint directory or 'pico' to load it here", positional=True
    )
    model: str | None = setting(None, "the server's model; its first one by default")
    api_key: str | None = setting(None, "sent to the server as a bearer token")
    system: str = setting("", "what the model is told first")

    def __post_init__(self) -> None:
        check_types(self)


def main(argv: Sequence[str] | None = None) -> int:
    console = Console(soft_wrap=True)
    try:
        settings = vars(_parser().parse_args(argv))
        config, sampling = from_flags(ChatConfig, settings), from_flags(Sampling, settings)
        with asyncio.Runner() as runner:
            speaker = runner.run(_speaker(config))
            try:
                console.print(f"{speaker.name} listens; /help lists commands", style="dim", highlight=False)
                conversation = Conversation(system=config.system)
                Repl(runner, speaker, console, _reader(console), conversation, sampling).run()
            finally:
                runner.run(speaker.close())
    except JaxserveError as error:
        sys.stderr.write(f"jaxserve: {error.message}\n")
        return _EXIT_ERROR
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    return 0


async def _speaker(config: ChatConfig) -> Speaker:
    if config.where.startswith(("http://", "https://")):
        return await ServerSpeaker.reach(config.where, config.model, config.api_key)
    return await LocalSpeaker.load(config.where, _say_progress)


def _say_progress(what: str, done: int, total: int) -> None:
    sys.stderr.write(f"\r{what}: {done}/{total}" + ("\n" if done == total else ""))
    sys.stderr.flush()


def _reader(console: Console) -> Any:
    if not sys.stdin.isatty():
        return lambda _: _line()
    with contextlib.suppress(ImportError):  # Pythons may be built without it
        importlib.import_module("readline")  # `input` uses it from then on
    return console.input


def _line() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="python -m jaxserve.chat", description=__doc__)
    add_flags(parser, ChatConfig, Sampling)
    return parser


if __name__ == "__main__":
    sys.exit(after_output(main()))
