"""Tokenizing that is no part of a request for text: off the event loop, with errors in the client's words."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from jaxserve.engine.client import EngineClient
from jaxserve.errors import InvalidRequestError
from jaxserve.types import OwnTokenIds
from server.context import RequestContext

Result = TypeVar("Result")

WHOLE_CONTEXT = -1  # "as many tokens as fit", where a number of tokens is asked for


async def counted(work: Coroutine[Any, Any, Result], context: RequestContext) -> Result:
    """The result of work that generates nothing, within what the caller's tenant may do: it counts as one of its requests.

    Raises RateLimitError.
    """
    call = context.call
    if call is None:
        return await work
    try:
        async with call.counted():
            return await work
    finally:
        work.close()  # of what was refused nothing has begun


async def decode(client: EngineClient, token_ids: Sequence[int], param: str, *, skip_special_tokens: bool = False) -> str:
    """The text of token ids, special tokens written out or left out.

    Raises InvalidRequestError naming `param` for an id that the model does not know, ContextLengthError for too many.
    """
    client.bounds.check_ids(len(token_ids), param)
    unknown = next((token for token in token_ids if not 0 <= token < client.model.vocab_size), None)
    if unknown is not None:
        last = client.model.vocab_size - 1
        raise InvalidRequestError(f"{param} has {unknown}: token ids are integers from 0 to {last}", param=param)
    return await asyncio.to_thread(partial(client.tokenizer.decode, list(token_ids), skip_special_tokens=skip_special_tokens))


def truncated(client: EngineClient, token_ids: Sequence[int], limit: int, output: int | None, param: str) -> list[int]:
    """The last `limit` tokens, or as many as leave room for `output` more (one if None).

    Raises InvalidRequestError naming `param` for a limit that no prompt could have.
    """
    context = client.model.max_model_len
    if limit == WHOLE_CONTEXT:
        limit = max(context - (output or 1), 1)
    elif not 1 <= limit <= context:
        raise InvalidRequestError(f"{param} must be {WHOLE_CONTEXT} or between 1 and {context}, got {limit}", param=param)
    end = token_ids[-limit:]
    return OwnTokenIds(end) if isinstance(token_ids, OwnTokenIds) else list(end)
