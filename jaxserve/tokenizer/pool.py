"""Text tools of a front end: threads of its own, or processes beside it."""

from __future__ import annotations

import asyncio

from jaxserve.tokenizer.chat import ChatTemplate
from jaxserve.tokenizer.load import load_tokenizer
from jaxserve.tokenizer.texts import Texts, TextTools, ThreadTexts


def load_tools(tokenizer: str, chat_template: str | None) -> TextTools:
    """The tools of a checkpoint. Raises CheckpointError.

    Args:
        tokenizer: path of the tokenizer: a directory or a file.
        chat_template: path of the file that replaces its chat template.
    """
    return TextTools(load_tokenizer(tokenizer), ChatTemplate.load(tokenizer, chat_template))


async def open_texts(tokenizer: str, chat_template: str | None, processes: int) -> Texts:
    """Text tools for an event loop; see `load_tools`."""
    return ThreadTexts(await asyncio.to_thread(load_tools, tokenizer, chat_template))
