"""A bound on what a chat template may take: it is a program, and a conversation can make it loop for hours."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment


class TemplateTimeError(Exception):
    """A template took more time than it may."""


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, whose templates look at the clock at every turn of a loop and in every macro and block.

    Threads cannot be ended from outside, so what may repeat must end by itself. A single call, as of a filter that makes a long
    list, is not bounded by this; `range` is by Jinja.

    Attributes:
        seconds: of the thread's processor time, so that a busy machine makes no template too slow.
    """

    def __init__(self, *, seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self.seconds = seconds
        self._ends = threading.local()

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Within it a template of this environment may be rendered. It raises TemplateTimeError when its time is over."""
        self._ends.at, self._ends.soonest = time.thread_time() + self.seconds, time.monotonic() + self.seconds
        yield

    def look_at_the_clock(self) -> None:
        if time.monotonic() > self._ends.soonest and time.thread_time() > self._ends.at:  # the second takes microseconds
            raise TemplateTimeError

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        repeating: Iterable[nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block] = template.find_all(
            (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)
        )
        for node in repeating:
            call = nodes.Call(nodes.EnvironmentAttribute("look_at_the_clock"), [], [], None, None)
            node.body.insert(0, nodes.ExprStmt(call).set_lineno(node.lineno))
        return template
