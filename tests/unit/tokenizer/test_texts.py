"""Texts in threads: what is long stands in nobody's way, and what was given up is not done."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from jaxserve.tokenizer.load import load_tools
from jaxserve.tokenizer.texts import LONG, TextTools, ThreadTexts

PICO = str(Path(__file__).resolve().parents[3] / "jaxserve" / "assets" / "pico")


class HeldBack:
    """A tokenizer whose long texts wait to be let go; the rest is pico's own."""

    def __init__(self) -> None:
        self.tools = load_tools(PICO, None)
        self.let_go = threading.Event()
        self.long = 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if len(text) >= LONG:
            self.long += 1
            assert self.let_go.wait(30)
        return self.tools.tokenizer.encode(text, add_special_tokens=add_special_tokens)


async def test_short_texts_do_not_wait_for_long_ones() -> None:
    held = HeldBack()
    texts = ThreadTexts(TextTools(held, held.tools.template))  # type: ignore[arg-type]
    try:
        chat = [{"role": "user", "content": "word " * LONG}]
        long = [asyncio.create_task(texts.encode("word " * LONG)) for _ in range(8)]
        long += [asyncio.create_task(texts.render(chat, {})) for _ in range(8)]
        while not held.long:
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            assert await texts.encode("hi") == held.tools.encode("hi")
            assert await texts.render([{"role": "user", "content": "hi"}], {})
            assert await texts.run(lambda: 7) == 7
        for task in long[1:]:
            task.cancel()
        held.let_go.set()
        assert await long[0] == held.tools.encode("word " * LONG)
    finally:
        held.let_go.set()
        await texts.close()
    assert held.long == 1, "nobody waited for the others"
