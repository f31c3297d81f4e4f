"""Tokenizing and chat templates off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from jaxserve.chat_parsing.template import ResponseTemplate
from jaxserve.errors import InvalidRequestError
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.tokenizer.chat import ChatTemplate
from jaxserve.types import OwnTokenIds

THREADS = 2  # for what is short
LONG = 16_384  # characters: texts from here on wait for each other, and nobody else for them
_A_MESSAGE = 64  # characters that a template takes as long for as for a message

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class TextTools:
    """A model's tokenizer, its chat template if it has one, and how to read its responses if that is known. Thread-safe."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    responses: ResponseTemplate | None = None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Tokens of a prompt, with the special tokens that the tokenizer adds unless they are not wanted."""
        return OwnTokenIds(self.tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def render(
        self, messages: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any], max_bytes: int | None = None
    ) -> list[int]:
        """Tokens of a conversation.

        Args:
            messages: the conversation.
            arguments: `add_generation_prompt`, `continue_final_message` and the template's own variables.
            max_bytes: of the text that the template makes of it; None for any number.

        Raises InvalidRequestError if there is no template or it refuses the messages, ContextLengthError for a longer text.
        """
        if self.template is None:
            raise InvalidRequestError(
                "the model has no chat template; use /v1/completions or give one with --chat-template", param="messages"
            )
        own = dict(arguments)
        return OwnTokenIds(
            self.template.tokens(
                self.tokenizer,
                messages,
                add_generation_prompt=own.pop("add_generation_prompt", True),
                continue_final_message=own.pop("continue_final_message", False),
                arguments=own,
                max_characters=max_bytes,  # characters are no more than bytes
            )
        )


class Texts(Protocol):
    """Text tools for an event loop."""

    @property
    def tools(self) -> TextTools:
        """The tools, for work that is short."""
        ...

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """As TextTools.encode, off the event loop. Cancelled before its turn, it costs nothing."""
        ...

    async def render(
        self, messages: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any], max_bytes: int | None = None
    ) -> list[int]:
        """As TextTools.render, off the event loop. Cancelled before its turn, it costs nothing."""
        ...

    async def run(self, function: Callable[[], Result]) -> Result:
        """Run anything else that may take long in a thread."""
        ...

    async def run_long(self, function: Callable[[], Result]) -> Result:
        """Run what does take long in a thread, one at a time, so that nothing short waits for it."""
        ...

    async def close(self) -> None:
        """End threads and processes."""
        ...


class ThreadTexts:
    """Texts in threads of this process; see Texts. What is long has a thread of its own: short texts never wait for it."""

    def __init__(self, tools: TextTools) -> None:
        self._tools = tools
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="jaxserve-tokenizer")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="jaxserve-tokenizer-long")

    @property
    def tools(self) -> TextTools:
        return self._tools

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        pool = self._long if len(text) >= LONG else self._pool
        encode = partial(self._tools.encode, text, add_special_tokens=add_special_tokens)
        return await asyncio.get_running_loop().run_in_executor(pool, encode)

    async def render(
        self, messages: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any], max_bytes: int | None = None
    ) -> list[int]:
        pool = self._long if is_long(messages) else self._pool
        render = partial(self._tools.render, messages, arguments, max_bytes)
        return await asyncio.get_running_loop().run_in_executor(pool, render)

    async def run(self, function: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    async def run_long(self, function: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._long, function)

    async def close(self) -> None:
        for pool in (self._pool, self._long):
            await asyncio.to_thread(pool.shutdown)


def is_long(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a conversation is long, by its messages' texts and their number."""
    return sum(_A_MESSAGE + _length(message.get("content") or "") for message in messages) >= LONG


def _length(content: Any) -> int:
    """Of a text, or of text parts."""
    return (
        sum(len(part.get("text", "")) for part in content if isinstance(part, Mapping))
        if isinstance(content, list)
        else len(content)
    )
