"""The bar over a call's prompts: where it is drawn, when, and what it says."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import pytest
from rich.console import Console
from tqdm import tqdm

from jaxserve.clock import VirtualClock
from jaxserve.errors import InvalidRequestError
from jaxserve.terminal.progress_bar import AFTER_SECONDS, progress_bar


def console(*, is_terminal: bool = True) -> Console:
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=80)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_it_is_drawn_where_a_call_takes_a_moment() -> None:
    clock, screen = VirtualClock(), console()
    with progress_bar(True, 3, clock, screen) as bar:
        clock.advance(AFTER_SECONDS / 2)
        bar.turned()
        bar.ended(10, 30)
        assert written(screen) == ""
        clock.advance(AFTER_SECONDS)
        bar.turned()
        clock.advance(AFTER_SECONDS / 2)
        bar.ended(10, 30)
    assert "Processed prompts" in written(screen)
    assert "2/3" in written(screen)
    assert "30 tokens/s" in written(screen)


def test_a_call_that_is_quick_or_quiet_or_has_no_terminal_writes_nothing() -> None:
    for use, screen, seconds in (
        (True, console(), AFTER_SECONDS / 2),
        (False, console(), 60.0),
        (True, console(is_terminal=False), 60.0),
    ):
        clock = VirtualClock()
        with progress_bar(use, 1, clock, screen) as bar:
            clock.advance(seconds)
            bar.turned()
            bar.ended(1, 1)
        assert written(screen) == ""


def test_tqdm_makes_one() -> None:
    clock, stream = VirtualClock(), io.StringIO()
    with progress_bar(partial(tqdm, file=stream, mininterval=0), 2, clock) as bar:
        for _ in range(2):
            clock.advance(1.0)
            bar.turned()
            bar.ended(4, 6)
    assert "Processed prompts" in stream.getvalue()
    assert "2/2" in stream.getvalue()
    assert "est. speed input: 4.00 toks/s, output: 6.00 toks/s" in stream.getvalue()


def test_it_is_closed_whatever_happens() -> None:
    made: list[tqdm[Any]] = []

    def make(**arguments: Any) -> tqdm[Any]:
        made.append(tqdm(file=io.StringIO(), **arguments))
        return made[0]

    with pytest.raises(KeyError), progress_bar(make, 1, VirtualClock()):
        raise KeyError
    assert made[0].disable  # what close sets


def test_what_is_no_bar() -> None:
    with pytest.raises(InvalidRequestError, match="use_tqdm must be") as info, progress_bar("yes", 1, VirtualClock()):  # type: ignore[arg-type]  # what is wrong
        pass
    assert info.value.param == "use_tqdm"
