"""Open paths are rendered rarely, and what callers get is never older than their question."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from server.observe.rendered import RenderedOften, RenderedOnce


class Page:
    """A page whose text is the number of its rendering; time moves by sleeping alone."""

    def __init__(self) -> None:
        self.now = 100.0
        self.began: list[float] = []
        self.text = RenderedOften(self._render, 1.0, now=lambda: self.now, sleep=self._sleep).text

    async def _render(self) -> bytes:
        self.began.append(self.now)
        number = len(self.began)
        await asyncio.sleep(0)
        return str(number).encode()

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self.now += seconds


async def test_concurrent_callers_share_a_rendering() -> None:
    page = Page()
    assert await asyncio.gather(*(page.text() for _ in range(50))) == [b"1"] * 50


async def test_a_second_lies_between_two_renderings() -> None:
    page = Page()
    texts = [await page.text() for _ in range(4)]  # each asks when it has the one before
    assert texts == [b"1", b"2", b"3", b"4"]
    assert page.began == [100.0, 101.0, 102.0, 103.0]
    page.now += 60
    await page.text()
    assert page.began[-1] == 163.0


async def test_a_caller_gets_a_rendering_that_began_after_it_asked() -> None:
    page = Page()
    first = asyncio.create_task(page.text())
    while not page.began:
        await asyncio.sleep(0)
    assert await page.text() == b"2"
    assert await first == b"1"


async def test_a_caller_that_leaves_does_not_end_it_for_others() -> None:
    page = Page()
    leaving, staying = (asyncio.create_task(page.text()) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == b"1"
    with contextlib.suppress(asyncio.CancelledError):
        await leaving


async def test_a_constant_text_is_rendered_once_unless_it_fails() -> None:
    calls = []

    def render() -> bytes:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("no file")
        return b"text"

    once = RenderedOnce(render)
    with pytest.raises(OSError, match="no file"):
        await once.text()
    assert await asyncio.gather(*(once.text() for _ in range(20))) == [b"text"] * 20
    assert await once.text() == b"text"
    assert len(calls) == 2
