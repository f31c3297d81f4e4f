"""An engine client in front of another, which is asked whatever it does not answer itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from jaxserve.chat_parsing.template import ResponseTemplate
from jaxserve.engine.activity import Lateness
from jaxserve.engine.bounds import RequestBounds
from jaxserve.engine.calls import EngineCall
from jaxserve.engine.client import EngineClient, EngineStats, ModelInfo, RequestParams
from jaxserve.engine.death import EngineDeath
from jaxserve.engine.events import Event
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.types import ChatMessage, Prompt, RequestOptions

Result = TypeVar("Result")


class InFrontOf:
    """See EngineClient.

    Attributes:
        base: that is asked.
    """

    def __init__(self, base: EngineClient) -> None:
        self.base = base

    @property
    def model(self) -> ModelInfo:
        return self.base.model

    @property
    def death(self) -> EngineDeath | None:
        return self.base.death

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

    def check_room(self, tenant: str, sequences: int) -> None:
        self.base.check_room(tenant, sequences)

    def room(self, tenant: str, names: Sequence[str], sequences: int) -> AbstractContextManager[None]:
        return self.base.room(tenant, names, sequences)

    def generate(
        self,
        prompt: Prompt,
        params: RequestParams,
        *,
        request_id: str | None = None,
        options: RequestOptions | None = None,
    ) -> AsyncIterator[Event]:
        return self.base.generate(prompt, params, request_id=request_id, options=options)

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

    def lateness(self) -> Lateness:
        return self.base.lateness()

    def check_health(self) -> None:
        self.base.check_health()

    async def drain(self, timeout: float) -> None:
        await self.base.drain(timeout)
