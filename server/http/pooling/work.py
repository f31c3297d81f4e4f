"""What the endpoints that pool share: prompts, the job, its vectors, and how these are written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from fastapi import Response

from jaxserve.engine.client import EngineClient
from jaxserve.engine.events import Finished
from jaxserve.errors import InvalidRequestError
from jaxserve.pooling.params import PoolingParams
from jaxserve.pooling.truncation import truncated
from jaxserve.types import Prompt, RequestOptions
from server.context import RequestContext
from server.http.headers import TENANT_HEADER
from server.http.pooling.protocol import PooledFields
from server.http.pooling.replies import PooledUsage
from server.requests import RequestJob, TextOrIds, engine_prompt, named_id
from server.streams import run
from server.tally import Tally
from server.tokenizing import WHOLE_CONTEXT

Floats = npt.NDArray[np.float32]
_MANY_NUMBERS = 20_000  # writing so many takes longer than going to a thread for it
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Pooled:
    """A job that is done: its name, what was pooled of each prompt, and what that took."""

    request_id: str
    vectors: list[Floats]
    tally: Tally

    @property
    def usage(self) -> PooledUsage:
        return {"prompt_tokens": self.tally.prompt, "total_tokens": self.tally.prompt}

    def head(self, client: EngineClient) -> dict[str, Any]:
        """What a list begins with."""
        return {"id": self.request_id, "object": "list", "created": int(time.time()), "model": client.model.name}


@dataclass(frozen=True, slots=True)
class PoolingWork:
    """Whose work it is, and what of the body matters to all.

    Attributes:
        field: what the client calls the prompts.
        dimensions: what it calls the length of an embedding.
    """

    client: EngineClient
    body: PooledFields
    options: RequestOptions
    context: RequestContext
    field: str = "input"
    dimensions: str = "dimensions"

    async def pool(self, prefix: str, prompts: Sequence[TextOrIds], params: PoolingParams) -> Pooled:
        """Raises JaxserveError; cancelling aborts."""
        client = self.client
        job = RequestJob(
            request_id=named_id(prefix, self.body.request_id),
            prompts=tuple([await self._prompt(prompt) for prompt in prompts]),
            params=params,
            options=self.options,
            names={"tenant": TENANT_HEADER, "prompt": self.field, "dimensions": self.dimensions},
            delivers_output=False,
        )
        tally, vectors = Tally(), dict[int, Floats]()
        async with aclosing(run(client, job, self.context)) as events:
            async for which, event in events:
                tally.add(event)
                if isinstance(event, Finished):
                    assert event.pooled is not None, "what did not end by itself is an error"
                    vectors[which] = event.pooled
        return Pooled(job.request_id, [vectors[which] for which in range(len(prompts))], tally)

    async def pair(self, first: str, second: str) -> list[int]:
        """Two texts as one prompt."""
        for text in (first, second):
            self.client.bounds.check_text(text, self.field)
        pair = await asyncio.to_thread(self.client.tokenizer.encode_pair, first, second)
        limit = self._limit()
        return pair if limit is None else pair[:limit]

    async def _prompt(self, given: TextOrIds) -> Prompt:
        limit = self._limit()
        if limit is None:
            return engine_prompt(given)
        if not isinstance(given, str):
            return engine_prompt(given[:limit])
        most = self.client.bounds.text_bytes  # what is behind them is cut off anyway
        text = given if len(given) * 4 <= most else given.encode(errors="replace")[:most].decode(errors="ignore")
        plain = await self.client.encode(text, add_special_tokens=False)
        return engine_prompt(truncated(await self.client.encode(text), plain, limit))

    def _limit(self) -> int | None:
        """Tokens of a prompt at most; None for all that it has."""
        asked, context = self.body.truncate_prompt_tokens, self.client.model.max_model_len
        if asked is not None and asked != WHOLE_CONTEXT and not 1 <= asked <= context:
            raise InvalidRequestError(
                f"truncate_prompt_tokens must be {WHOLE_CONTEXT} or between 1 and {context}, got {asked}",
                param="truncate_prompt_tokens",
            )
        return context if asked == WHOLE_CONTEXT else asked


async def json_answer(client: EngineClient, content: Callable[[], Mapping[str, Any]], numbers: int) -> Response:
    """The answer as JSON, written off the event loop if it has many numbers."""

    def write() -> bytes:
        return _encode(content())

    written = write() if numbers < _MANY_NUMBERS else await client.run_long(write)
    return Response(written, media_type="application/json")
