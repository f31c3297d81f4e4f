"""How far a call has come that answers many prompts: a bar of the house's, drawn in a terminal alone, or one of tqdm's kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from jaxserve.clock import Clock
from jaxserve.errors import InvalidRequestError

UseTqdm = bool | Callable[..., Any]
"""Whether a bar is shown; or what makes one, called as tqdm is."""

AFTER_SECONDS = 1.0  # what takes no longer needs no bar
_WHAT = "Processed prompts"


class ProgressBar(Protocol):
    def turned(self) -> None:
        """Time has passed."""
        ...

    def ended(self, prompt_tokens: int, output_tokens: int) -> None:
        """A request of so many tokens has ended."""
        ...


@contextmanager
def progress_bar(use_tqdm: UseTqdm, total: int, clock: Clock, console: Console | None = None) -> Iterator[ProgressBar]:
    """A bar over `total` requests, gone from the console at the end: standard error by default.

    Raises InvalidRequestError for what is neither a bool nor a callable.
    """
    speeds = _Speeds(clock)
    if callable(use_tqdm):
        made = use_tqdm(total=total, desc=_WHAT, dynamic_ncols=True, postfix=speeds.text())
        try:
            yield _Made(made, speeds)
        finally:
            made.close()
        return
    if not isinstance(use_tqdm, bool):
        raise InvalidRequestError("use_tqdm must be true, false or a callable that makes a bar", param="use_tqdm")
    console = console or Console(stderr=True)
    if not (use_tqdm and console.is_terminal):
        yield _Nothing()
        return
    with _Drawn.on(console, total, speeds) as drawn:
        yield drawn


class _Speeds:
    """Tokens a second since the start."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.now()
        self._prompt = 0
        self._output = 0

    @property
    def seconds(self) -> float:
        return self._clock.now() - self._began

    def add(self, prompt_tokens: int, output_tokens: int) -> None:
        self._prompt += prompt_tokens
        self._output += output_tokens

    def text(self) -> str:
        """In vLLM's words."""
        return f"est. speed input: {self._of(self._prompt):.2f} toks/s, output: {self._of(self._output):.2f} toks/s"

    def short(self) -> str:
        return f"{self._of(self._output):,.0f} tokens/s"

    def _of(self, tokens: int) -> float:
        return tokens / max(self.seconds, 1e-9)


class _Nothing:
    def turned(self) -> None:
        pass

    def ended(self, prompt_tokens: int, output_tokens: int) -> None:
        pass


class _Made:
    """By the caller."""

    def __init__(self, made: Any, speeds: _Speeds) -> None:
        self._made = made
        self._speeds = speeds

    def turned(self) -> None:
        pass

    def ended(self, prompt_tokens: int, output_tokens: int) -> None:
        self._speeds.add(prompt_tokens, output_tokens)
        self._made.postfix = self._speeds.text()
        self._made.update(1)


class _Drawn:
    """By rich, once the call has taken a moment."""

    def __init__(self, progress: Progress, total: int, speeds: _Speeds) -> None:
        self._progress = progress
        self._speeds = speeds
        self._task = progress.add_task(_WHAT, total=total, speed=speeds.short())

    @classmethod
    @contextmanager
    def on(cls, console: Console, total: int, speeds: _Speeds) -> Iterator[_Drawn]:
        columns = (  # that fit a narrow terminal
            *(TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn()),
            TextColumn("{task.fields[speed]}"),
        )
        progress = Progress(*columns, console=console, transient=True)
        try:
            yield cls(progress, total, speeds)
        finally:
            progress.stop()

    def turned(self) -> None:
        if not self._progress.live.is_started and self._speeds.seconds >= AFTER_SECONDS:
            self._progress.start()

    def ended(self, prompt_tokens: int, output_tokens: int) -> None:
        self._speeds.add(prompt_tokens, output_tokens)
        self._progress.update(self._task, advance=1, speed=self._speeds.short())
