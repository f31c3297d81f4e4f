"""The typed events of a streamed response, as OpenAI names and numbers them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

from jaxserve.engine.events import Delta, Finished, PositionLogprobs, Started
from jaxserve.errors import JaxserveError
from server.errors import http_body
from server.http.generation import Tally, reason_of
from server.http.logprobs import chat_logprobs
from server.http.responses.replies import Draft, output_text, status_of
from server.http.sse import event_frame
from server.streams import Events


class ResponseStream:
    """One streamed response: every event says which of the stream's it is."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._number = 0
        self._tally = Tally()
        self._text: list[str] = []
        self._logprobs: list[PositionLogprobs] = []

    async def frames(self, events: Events) -> AsyncGenerator[bytes, None]:
        """The SSE frames of an answer to one prompt."""
        async with aclosing(events):
            async for _, event in events:
                self._tally.add(event)
                if isinstance(event, Started):
                    for frame in self._opening():
                        yield frame
                elif isinstance(event, Delta):
                    if event.text or event.logprobs:
                        yield self._addition(event)
                else:
                    for frame in self._end(event):
                        yield frame

    def failure(self, error: JaxserveError) -> bytes:
        """The last event of a stream that failed: OpenAI's fields, and the error body by which its SDK knows to raise."""
        detail = http_body(error)["error"]
        told = {name: detail[name] for name in ("code", "message", "param")}
        return self._event("error", **told, error=detail)

    def _opening(self) -> Iterator[bytes]:
        draft = self._draft
        yield self._event("response.created", response=draft.empty())
        yield self._event("response.in_progress", response=draft.empty())
        yield self._event("response.output_item.added", output_index=0, item=draft.message("in_progress", []))
        yield self._in_message("response.content_part.added", part=output_text("", ()))

    def _addition(self, event: Delta) -> bytes:
        self._text.append(event.text)
        self._logprobs.extend(event.logprobs or ())
        content = chat_logprobs(event.logprobs or ())["content"]
        return self._in_message("response.output_text.delta", delta=event.text, logprobs=content)

    def _end(self, event: Finished) -> Iterator[bytes]:
        reason = reason_of(event)
        status, part = status_of(reason), output_text("".join(self._text), self._logprobs)
        yield self._in_message("response.output_text.done", text=part["text"], logprobs=part["logprobs"])
        yield self._in_message("response.content_part.done", part=part)
        yield self._event("response.output_item.done", output_index=0, item=self._draft.message(status, [part]))
        yield self._event(f"response.{status}", response=self._draft.whole(part, reason, self._tally))

    def _in_message(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, item_id=self._draft.item_id, output_index=0, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        frame = event_frame({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return frame
