"""The gate's part in streams that survive their connection: which requests ask for one, and how they are answered."""

from __future__ import annotations

from contextlib import aclosing

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from jaxserve.errors import CancelledRequestError, InvalidRequestError, JaxserveError
from server.gateway.call import Call
from server.gateway.recordings import Add
from server.gateway.refusals import rate_limit_headers
from server.gateway.routes import generates
from server.gateway.streams import ResumableStreams, check_stream_id
from server.http.failures import error_response
from server.http.headers import tenant_of
from server.http.recorded import Recorder
from server.http.streams.numbering import cutting
from server.http.streams.replay import head_of, replay

STREAM_HEADER = "X-Stream-Id"
_CONVERSATION_HEADER = "X-Conversation-Id"
_RESUME = "stream_options.resume"


class _Options(msgspec.Struct):
    resume: bool | None = None


class _Body(msgspec.Struct):
    stream_options: _Options | None = None


_decode = msgspec.json.Decoder(_Body).decode


def stream_id_of(scope: Scope, headers: Headers, body: bytes, *, keyed: bool) -> str | None:
    """The id under which a request's answer can be resumed; None if it does not ask for that.

    Raises InvalidRequestError for what is no id, and for a request that has an idempotency key too.
    """
    if not generates(scope["method"], scope["path"]):
        return None
    named = headers.getlist(_CONVERSATION_HEADER)
    if len(named) > 1:
        raise InvalidRequestError(f"{_CONVERSATION_HEADER} must be given once, got {len(named)}", param=_CONVERSATION_HEADER)
    if not named and not _asks_to_resume(body):
        return None
    asked = _CONVERSATION_HEADER if named else _RESUME
    if keyed:
        raise InvalidRequestError(f"{asked} and Idempotency-Key exclude each other: both keep the answer", param=asked)
    stream_id: str = named[0] if named else scope["state"]["request_id"]
    check_stream_id(stream_id, _CONVERSATION_HEADER if named else "X-Request-Id")
    return stream_id


def _asks_to_resume(body: bytes) -> bool:
    if b'"resume"' not in body:
        return False
    try:
        options = _decode(body).stream_options
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # the application says what is wrong with it
        return False
    return options is not None and bool(options.resume)


class StreamGate:
    """Answers requests in such a way that who asked may leave and come back."""

    def __init__(self, recorder: Recorder, streams: ResumableStreams, silence: float) -> None:
        self._recorder = recorder
        self._streams = streams
        self._silence = silence

    async def answer(self, call: Call, stream_id: str, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        async def make(add: Add) -> bool:
            return await self._recorder.record(call, scope, body, add, cutting) < 400

        pieces = self._streams.begin(call.account, tenant_of(call, Headers(scope=scope)), stream_id, make)
        async with aclosing(pieces):
            try:
                head = await head_of(pieces, receive)
                headers = {STREAM_HEADER: stream_id, **rate_limit_headers(await call.look())}
            except CancelledRequestError:
                return  # nobody is left to tell
            except JaxserveError as error:
                response = error_response(error, scope["path"])
            else:
                response = replay(head, pieces, self._silence, headers)
            await response(scope, receive, send)
