"""GET /v1/streams; GET and DELETE /v1/streams/ID."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response

from jaxserve.errors import ErrorCode, InvalidRequestError
from server.gateway.streams import STREAM_ID, ResumableStreams, check_stream_id
from server.http import examples
from server.http.headers import caller_of
from server.http.openapi import ASKING, answer, failures
from server.http.streams.gate import STREAM_HEADER
from server.http.streams.replay import head_of, replay
from server.http.streams.replies import StreamDeletedReply, StreamListReply, stream_reply

router = APIRouter(tags=["streams"])

_LOOKING = (*ASKING, ErrorCode.OVERLOADED)
_READING = failures((*_LOOKING, ErrorCode.NOT_FOUND))
_PARAM = "stream_id"

StreamId = Annotated[str, Path(json_schema_extra={"pattern": STREAM_ID})]


@router.get("/v1/streams", responses={**answer(StreamListReply, examples.STREAMS), **failures(_LOOKING)})
async def listed(request: Request) -> StreamListReply:
    """List the caller's streams that can be resumed, and those that are done and still kept."""
    call, tenant = caller_of(request)
    entries, now = await _streams(request).listed(call.account, tenant), time.time()
    return {"object": "list", "data": [stream_reply(entry, now) for entry in entries]}


@router.get(
    "/v1/streams/{stream_id}",
    responses={**answer(Any, examples.COMPLETION, streamed=examples.RESUMED), **_READING},
    response_class=Response,
)
async def resume(
    stream_id: StreamId,
    request: Request,
    events: Annotated[int, Query(alias="from", ge=0, description="events that the client has: the next one is the first")] = 0,
    last_event_id: Annotated[int, Header(ge=0, description="the same, as an EventSource says it; goes before")] = 0,
) -> Response:
    """Go on with an answer that was asked for with X-Conversation-Id or stream_options.resume."""
    check_stream_id(stream_id, _PARAM)
    call, tenant = caller_of(request)
    have = last_event_id or events
    pieces = _streams(request).resume(call.account, tenant, stream_id, have)
    head = await head_of(pieces, request.receive)
    if have and not head.is_stream:
        await pieces.aclose()
        raise InvalidRequestError("from must be 0: the answer is no stream of events, and is sent as a whole", param="from")
    return replay(head, pieces, request.app.state.sse_keepalive, {STREAM_HEADER: stream_id}, resumed=True)


@router.delete(
    "/v1/streams/{stream_id}",
    responses={**answer(StreamDeletedReply, {"id": "chat-7", "object": "stream", "deleted": True}), **_READING},
)
async def delete(stream_id: StreamId, request: Request) -> StreamDeletedReply:
    """End a stream if it runs, and forget it."""
    check_stream_id(stream_id, _PARAM)
    await _streams(request).end(caller_of(request)[1], stream_id)
    return {"id": stream_id, "object": "stream", "deleted": True}


def _streams(request: Request) -> ResumableStreams:
    streams: ResumableStreams = request.app.state.streams
    return streams
