"""The health of everything from the queue to the sampler: one token, made for nobody."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing
from typing import Any

from jaxserve.clock import Clock
from jaxserve.engine.client import EngineClient
from jaxserve.engine.events import Finished
from jaxserve.errors import CancelledRequestError, JaxserveError
from jaxserve.sampling.params import SamplingParams
from jaxserve.types import FinishReason, Prompt, RequestOptions, ServiceClass

EVERY_SECONDS = 5.0  # between two tokens, however often somebody asks
TIMEOUT_SECONDS = 10.0
_TENANT = "jaxserve-health"
_OPTIONS = RequestOptions(tenant=_TENANT, service_class=ServiceClass.BATCH, timeout=TIMEOUT_SECONDS)
_PROMPT: Prompt = {"prompt_token_ids": [0]}
_PARAMS = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


class DeepHealth:
    """Makes a token now and then. It is batch work: on a busy server it waits for others, and may be refused as they are."""

    def __init__(self, client: EngineClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._lock = asyncio.Lock()
        self._at: float | None = None  # when the last token was asked for
        self._seconds = 0.0
        self._error: JaxserveError | None = None

    async def check(self) -> tuple[float, float]:
        """Seconds that the last token took, and seconds since it was asked for. Raises what came instead of it.

        Those who ask while one is made wait for it.
        """
        async with self._lock:
            now = self._clock.now()
            if self._at is None or now - self._at >= EVERY_SECONDS:
                await self._make()
                self._at = now  # not before: who goes away while a token is made leaves nothing behind
        if self._error is not None:
            raise self._error.copy()
        return self._seconds, self._clock.now() - self._at

    async def _make(self) -> None:
        started = self._clock.now()
        self._error = None
        try:
            events: Any = self._client.generate(_PROMPT, _PARAMS, request_id=f"health-{uuid.uuid4().hex}", options=_OPTIONS)
            async with aclosing(events):
                async for event in events:
                    if isinstance(event, Finished) and event.finish_reason is FinishReason.ABORT:
                        raise CancelledRequestError("the token was not made: its request was aborted")
        except JaxserveError as error:
            self._error = error
        self._seconds = self._clock.now() - started
