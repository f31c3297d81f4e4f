"""The typed events of a streamed response, as OpenAI names and numbers them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

from jaxserve.engine.events import Finished, Started
from jaxserve.errors import JaxserveError
from server.errors import http_body
from server.events import ReadDelta
from server.http.generation import reason_of
from server.http.logprobs import chat_logprobs
from server.http.responses.output import Begun, CallItem, Change, Grown, Item, MessageItem, Output, ReasoningItem
from server.http.responses.replies import Draft
from server.http.sse import event_frame
from server.streams import Events
from server.tally import Tally


class ResponseStream:
    """One streamed response: every event says which of the stream's it is."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._output = Output(draft.name)
        self._tally = Tally()
        self._number = 0

    async def frames(self, events: Events) -> AsyncGenerator[bytes, None]:
        async with aclosing(events):
            async for _, event in events:
                self._tally.add(event)
                if isinstance(event, Started):
                    for kind in ("created", "in_progress"):
                        yield self._event(f"response.{kind}", response=self._draft.empty())
                elif isinstance(event, Finished):
                    for frame in self._end(event):
                        yield frame
                else:
                    assert isinstance(event, ReadDelta), "events of chats are read"
                    for change in self._output.add(event):
                        for frame in self._told(change):
                            yield frame

    def failure(self, error: JaxserveError) -> bytes:
        """The last events of a stream that failed: the response, and the error body by which OpenAI's SDK knows to raise."""
        detail = http_body(error)["error"]
        told = {name: detail[name] for name in ("code", "message", "param")}
        begun = self._number > 0
        failed = self._event("response.failed", response=self._draft.failed(detail["message"])) if begun else b""
        return failed + self._event("error", **told, error=detail)

    def _end(self, event: Finished) -> Iterator[bytes]:
        reason = reason_of(event)
        for change in self._output.finish(reason):
            yield from self._told(change)
        whole = self._draft.whole(self._output.replies(), reason, self._tally)
        yield self._event(f"response.{whole['status']}", response=whole)

    def _told(self, change: Change) -> Iterator[bytes]:
        item = change.item
        match change:
            case Begun():
                yield self._event("response.output_item.added", output_index=item.place, item=item.reply())
                if isinstance(item, ReasoningItem | MessageItem):
                    yield self._of_item("content_part.added", item, content_index=0, part=item.part())
            case Grown():
                yield self._grown(item, change)
            case _:
                yield from self._done(item)
                yield self._event("response.output_item.done", output_index=item.place, item=item.reply())

    def _grown(self, item: Item, change: Grown) -> bytes:
        if isinstance(item, CallItem):
            return self._of_item("function_call_arguments.delta", item, delta=change.text)
        if isinstance(item, ReasoningItem):
            return self._of_item("reasoning_text.delta", item, content_index=0, delta=change.text)
        logprobs = chat_logprobs(change.positions)["content"]
        return self._of_item("output_text.delta", item, content_index=0, delta=change.text, logprobs=logprobs)

    def _done(self, item: Item) -> Iterator[bytes]:
        """What comes before the end of an item."""
        if isinstance(item, CallItem):
            if item.status == "completed":  # nobody is to call what is not whole
                yield self._of_item("function_call_arguments.done", item, name=item.name, arguments=item.text)
        elif isinstance(item, ReasoningItem):
            yield self._of_item("reasoning_text.done", item, content_index=0, text=item.text)
            yield self._of_item("content_part.done", item, content_index=0, part=item.part())
        elif isinstance(item, MessageItem):
            part = item.part()
            yield self._of_item("output_text.done", item, content_index=0, text=part["text"], logprobs=part["logprobs"])
            yield self._of_item("content_part.done", item, content_index=0, part=part)

    def _of_item(self, kind: str, item: Item, **fields: Any) -> bytes:
        return self._event(f"response.{kind}", item_id=item.id, output_index=item.place, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        frame = event_frame({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return frame
