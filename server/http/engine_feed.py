"""GET /debug/engine: what the engine does, as a stream of frames; the page at /engine shows it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from jaxserve.errors import ErrorCode
from server.feed.hub import EngineFeeds
from server.http import examples
from server.http.openapi import ASKING, events, failures
from server.http.sse import stream

router = APIRouter(tags=["operation"])

_LONGEST_LIFE = 64
_MOST_FRAMES = 1_000_000


@router.get(
    "/debug/engine",
    responses={
        **events("frames, a few a second", examples.ENGINE_FRAME),
        **failures((*ASKING, ErrorCode.NOT_FOUND, ErrorCode.OVERLOADED)),
    },
    response_class=Response,
)
async def engine_feed(
    request: Request,
    engine: Annotated[
        str, Query(max_length=_LONGEST_LIFE, description="which, by the name that frames give it; by default the busiest")
    ] = "",
    frames: Annotated[
        int | None, Query(ge=1, le=_MOST_FRAMES, description="after so many the stream ends; by default it does not")
    ] = None,
) -> Response:
    """Watch the engine: its turns, what runs and waits, pages, preemptions. Each frame has what is new since the one before."""
    feeds: EngineFeeds = request.app.state.engine_feeds
    most = 1 if request.scope["state"].get("head") else frames  # nobody reads the frames of a HEAD
    return await stream(request, _events(feeds, engine, most))


async def _events(feeds: EngineFeeds, engine: str, most: int | None) -> AsyncGenerator[bytes, None]:
    count = 0
    async with aclosing(feeds.watch(engine)) as frames:
        async for content in frames:
            yield b"data: " + content + b"\n\n"
            count += 1
            if count == most:
                return
