"""Tokenizing and chat templates off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from jaxserve.errors import InvalidRequestError
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.tokenizer.chat import ChatTemplate

THREADS = 2

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class TextTools:
    """A model's tokenizer, and its chat template if it has one. Thread-safe."""

    tokenizer: Tokenizer
    template: ChatTemplate | None

    def encode(self, text: str) -> list[int]:
        """Tokens of a prompt, with the special tokens that the tokenizer adds."""
        return self.tokenizer.encode(text)

    def render(self, messages: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]) -> list[int]:
        """Tokens of a conversation. Raises InvalidRequestError if there is no template or it refuses the messages.

        Args:
            messages: the conversation.
            arguments: `add_generation_prompt`, `continue_final_message` and the template's own variables.
        """
        if self.template is None:
            raise InvalidRequestError(
                "the model has no chat template; use /v1/completions or give one with --chat-template", param="messages"
            )
        own = dict(arguments)
        text = self.template.render(
            messages,
            add_generation_prompt=own.pop("add_generation_prompt", True),
            continue_final_message=own.pop("continue_final_message", False),
            arguments=own,
        )
        return self.tokenizer.encode(text, add_special_tokens=False)  # the template wrote the special tokens itself


class Texts(Protocol):
    """Text tools for an event loop."""

    @property
    def tools(self) -> TextTools:
        """The tools, for work that is short."""
        ...

    async def encode(self, text: str) -> list[int]:
        """As TextTools.encode, off the event loop."""
        ...

    async def render(self, messages: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]) -> list[int]:
        """As TextTools.render, off the event loop."""
        ...

    async def run(self, function: Callable[[], Result]) -> Result:
        """Run anything else that may take long in a thread."""
        ...

    async def close(self) -> None:
        """End threads and processes."""
        ...


class ThreadTexts:
    """Texts in threads of this process; see Texts."""

    def __init__(self, tools: TextTools) -> None:
        self._tools = tools
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="jaxserve-tokenizer")

    @property
    def tools(self) -> TextTools:
        """The tools."""
        return self._tools

    async def encode(self, text: str) -> list[int]:
        """As TextTools.encode."""
        return await self.run(lambda: self._tools.encode(text))

    async def render(self, messages: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]) -> list[int]:
        """As TextTools.render."""
        return await self.run(lambda: self._tools.render(messages, arguments))

    async def run(self, function: Callable[[], Result]) -> Result:
        """Run a function in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    async def close(self) -> None:
        """Wait for the threads to end."""
        await asyncio.to_thread(self._pool.shutdown)
