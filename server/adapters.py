"""An adapter as a model of its own: an EngineClient whose requests its base computes with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from jaxserve.engine.client import EngineClient, ModelInfo, RequestParams
from jaxserve.engine.events import Event
from jaxserve.errors import InvalidRequestError
from jaxserve.types import Prompt, RequestOptions
from server.in_front import InFrontOf


class AdapterClient(InFrontOf):
    """Whether there is such an adapter, and whose, the engine says when a request comes to it.

    Args:
        base: the client of the model that it is over.
        name: the adapter's.
    """

    def __init__(self, base: EngineClient, name: str) -> None:
        super().__init__(base)
        self.name = name

    @property
    def model(self) -> ModelInfo:
        """The base's, under this name."""
        return replace(self.base.model, name=self.name, aliases=())

    def generate(
        self,
        prompt: Prompt,
        params: RequestParams,
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
