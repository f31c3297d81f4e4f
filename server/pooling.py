"""What surfaces that pool share: the job of a request, and its vectors."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxserve.engine.client import EngineClient
from jaxserve.engine.events import Finished
from jaxserve.errors import InvalidRequestError
from jaxserve.pooling.params import PoolingParams, PoolingTask
from jaxserve.pooling.pooler import Pooler, require_pooler
from jaxserve.pooling.truncation import truncated
from jaxserve.types import Prompt, RequestOptions
from server.context import RequestContext
from server.requests import RequestJob, TextOrIds, engine_prompt, in_words_of_client
from server.streams import run
from server.tally import Tally
from server.tokenizing import WHOLE_CONTEXT

Floats = npt.NDArray[np.float32]

# Bytes of one value in a response, on average. JSON has float32 values with the digits of float64, and a comma.
JSON_BYTES, BASE64_BYTES, BINARY_BYTES = 21.0, 16 / 3, 4.0


def default_task(pooler: Pooler | None) -> PoolingTask:
    """What is asked for where nobody says."""
    return "embed" if pooler is None or "embed" in pooler.tasks else "classify"


@dataclass(frozen=True, slots=True)
class Pooled:
    """A job that is done: its name, what was pooled of each prompt, and what that took."""

    request_id: str
    vectors: list[Floats]
    tally: Tally

    @property
    def numbers(self) -> int:
        """Of all vectors."""
        return sum(vector.size for vector in self.vectors)


@dataclass(frozen=True, slots=True)
class PoolingWork:
    """Whose work it is.

    Attributes:
        names: for errors, what the client calls the parameters that it does not call as the engine does; `prompt` among them.
        truncate_prompt_tokens: tokens of a text at most, of which the beginning stays; -1 for what the context has room for.
        value_bytes: of one value in the response, on average: the response's size is bounded before work is done.
    """

    client: EngineClient
    options: RequestOptions
    context: RequestContext
    names: Mapping[str, str]
    truncate_prompt_tokens: int | None = None
    value_bytes: float = JSON_BYTES

    async def pool(self, request_id: str, prompts: Sequence[TextOrIds], params: PoolingParams) -> Pooled:
        """Raises JaxserveError; cancelling aborts."""
        try:
            bounded = await self._bounded(prompts, params)
        except InvalidRequestError as error:
            raise in_words_of_client(error, self.names) from error
        job = RequestJob(
            request_id=request_id,
            prompts=tuple(bounded),
            params=params,
            options=self.options,
            names=self.names,
            delivers_output=False,
        )
        tally, vectors = Tally(), dict[int, Floats]()
        async with aclosing(run(self.client, job, self.context)) as events:
            async for which, event in events:
                tally.add(event)
                if isinstance(event, Finished):
                    assert event.pooled is not None, "what did not end by itself is an error"
                    vectors[which] = event.pooled
        return Pooled(request_id, [vectors[which] for which in range(len(prompts))], tally)

    async def pair(self, first: str, second: str) -> list[int]:
        """Two texts as one prompt."""
        for text in (first, second):
            self.client.bounds.check_text(text, self.names["prompt"])
        pair = await asyncio.to_thread(self.client.tokenizer.encode_pair, first, second)
        limit = self._limit()
        return pair if limit is None else pair[:limit]

    async def _bounded(self, prompts: Sequence[TextOrIds], params: PoolingParams) -> list[Prompt]:
        """The prompts, if the response to them is not too large.

        For a vector per token, texts become token ids here, and tokenization stops when the response is too large.
        """
        bounds, width = self.client.bounds, require_pooler(self.client.model.pooler, params).width_of(params)
        if params.task != "token_embed":
            bounds.check_vectors(len(prompts), width, self.value_bytes)
            return [await self._prompt(prompt) for prompt in prompts]
        bounded, tokens = list[Prompt](), 0
        for given in prompts:
            prompt = await self._prompt(given)
            fields: Mapping[str, Any] = {"prompt": prompt} if isinstance(prompt, str) else prompt
            ids = fields["prompt_token_ids"] if "prompt_token_ids" in fields else await self.client.encode(fields["prompt"])
            tokens += len(ids)
            bounds.check_vectors(tokens, width, self.value_bytes)
            bounded.append({"prompt_token_ids": ids})
        return bounded

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
        asked, context = self.truncate_prompt_tokens, self.client.model.max_model_len
        if asked is not None and asked != WHOLE_CONTEXT and not 1 <= asked <= context:
            raise InvalidRequestError(
                f"truncate_prompt_tokens must be {WHOLE_CONTEXT} or between 1 and {context}, got {asked}",
                param="truncate_prompt_tokens",
            )
        return context if asked == WHOLE_CONTEXT else asked
