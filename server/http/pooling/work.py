"""What the endpoints that pool share: whose work a body is, and how answers are written."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import Request, Response

from jaxserve.engine.client import EngineClient
from jaxserve.types import RequestOptions
from server.context import RequestContext
from server.http.headers import TENANT_HEADER, context_of, options_of
from server.http.pooling.protocol import EncodingFormat, PooledFields
from server.http.pooling.replies import PooledUsage
from server.json_vectors import encode
from server.pooling import BASE64_BYTES, JSON_BYTES, Pooled, PoolingWork

_MANY_NUMBERS = 20_000  # writing so many takes longer than going to a thread for it


_VALUE_BYTES: Mapping[EncodingFormat, float] = {"float": JSON_BYTES, "base64": BASE64_BYTES}


def work_of(
    client: EngineClient, body: PooledFields, request: Request, encodings: Sequence[EncodingFormat] = ("float",), **names: str
) -> PoolingWork:
    """The work that a request asks for.

    Args:
        encodings: each vector is in the response once in each.
        names: fields of the body whose names are not the engine's.
    """
    return work_for(client, body, options_of(body, request.headers), context_of(request), encodings, **names)


def work_for(
    client: EngineClient,
    body: PooledFields,
    options: RequestOptions,
    context: RequestContext,
    encodings: Sequence[EncodingFormat] = ("float",),
    **names: str,
) -> PoolingWork:
    """The same for a body that is not an HTTP request, such as a line of a batch."""
    told = {"tenant": TENANT_HEADER, "prompt": "input", **names}
    value_bytes = sum(_VALUE_BYTES[encoding] for encoding in encodings)
    return PoolingWork(client, options, context, told, body.truncate_prompt_tokens, value_bytes)


def head(client: EngineClient, pooled: Pooled) -> dict[str, Any]:
    """What a list begins with."""
    return {"id": pooled.request_id, "object": "list", "created": int(time.time()), "model": client.model.name}


def usage(pooled: Pooled) -> PooledUsage:
    return {"prompt_tokens": pooled.tally.prompt, "total_tokens": pooled.tally.prompt}


async def json_answer(client: EngineClient, content: Callable[[], Mapping[str, Any]], numbers: int) -> Response:
    """The answer as JSON, written off the event loop if it has many numbers."""

    def write() -> bytes:
        return encode(content())

    written = write() if numbers < _MANY_NUMBERS else await client.run_long(write)
    return Response(written, media_type="application/json")
