"""An adapter as a model of its own: an EngineClient whose requests its base computes with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeVar

from jaxserve.chat_parsing.template import ResponseTemplate
from jaxserve.engine.bounds import RequestBounds
from jaxserve.engine.calls import EngineCall
from jaxserve.engine.client import EngineClient, EngineStats, ModelInfo
from jaxserve.engine.death import EngineDeath
from jaxserve.engine.events import Event
from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import SamplingParams
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.types import ChatMessage, Prompt, RequestOptions

Result = TypeVar("Result")


class AdapterClient:
    """See EngineClient. Whether there is such an adapter, and whose, the engine says when a request comes to it.

    Args:
        base: the client of the model that it is over.
        name: the adapter's.
    """

    def __init__(self, base: EngineClient, name: str) -> None:
        self.base = base
        self.name = name

    @property
    def model(self) -> ModelInfo:
        """The base's, under this name."""
        return replace(self.base.model, name=self.name, aliases=())

    @property
    def tokenizer(self) -> Tokenizer:
        return self.base.tokenizer

    @property
    def chat_template(self) -> str | None:
        return self.base.chat_template

    @property
    def response_template(self) -> ResponseTemplate | None:
        return self.base.response_template

    @property
    def bounds(self) -> RequestBounds:
        return self.base.bounds

    @property
    def death(self) -> EngineDeath | None:
        return self.base.death

    def check_room(self, tenant: str, sequences: int) -> None:
        self.base.check_room(tenant, sequences)

    def room(self, tenant: str, names: Sequence[str], sequences: int) -> AbstractContextManager[None]:
        return self.base.room(tenant, names, sequences)

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        options: RequestOptions | None = None,
    ) -> AsyncIterator[Event]:
        """Raises InvalidRequestError for options that name another adapter."""
        options = options or RequestOptions()
        if options.adapter not in ("", self.name):
            raise InvalidRequestError(
                f"lora_adapter is {options.adapter!r}, and the model {self.name!r} is another adapter", param="lora_adapter"
            )
        return self.base.generate(prompt, params, request_id=request_id, options=replace(options, adapter=self.name))

    async def encode(self, text: str, *, add_special_tokens: bool = True, last: int | None = None) -> list[int]:
        return await self.base.encode(text, add_special_tokens=add_special_tokens, last=last)

    async def run_long(self, function: Callable[[], Result]) -> Result:
        return await self.base.run_long(function)

    async def render_chat(self, messages: Sequence[ChatMessage], template_arguments: Mapping[str, Any]) -> Prompt:
        return await self.base.render_chat(messages, template_arguments)

    async def abort(self, request_id: str) -> bool:
        return await self.base.abort(request_id)

    async def reset_prefix_cache(self) -> None:
        await self.base.reset_prefix_cache()

    async def call(self, call: EngineCall[Result]) -> Result:
        return await self.base.call(call)

    def stats(self) -> EngineStats:
        return self.base.stats()

    def heartbeat_age(self) -> float:
        return self.base.heartbeat_age()

    def check_health(self) -> None:
        self.base.check_health()

    async def drain(self, timeout: float) -> None:
        await self.base.drain(timeout)
