"""One parser for all families: a response's text in pieces of any size, in; reasoning, content and calls, out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxserve.chat_parsing.automaton import MAX_LOOK_BEHIND
from jaxserve.chat_parsing.calls import CallReader, CallSink, MalformedCallError
from jaxserve.chat_parsing.json_calls import ArgumentsReader, EnvelopeReader
from jaxserve.chat_parsing.message import (
    ContentDelta,
    ContentWasReasoning,
    Delta,
    Message,
    ReasoningDelta,
    collect,
    merged,
    settled,
)
from jaxserve.chat_parsing.python_calls import PythonCallsReader
from jaxserve.chat_parsing.search import Match, RowSearch, Search, find_all
from jaxserve.chat_parsing.second_reading import SecondReading
from jaxserve.chat_parsing.stream import Meter, TextStream
from jaxserve.chat_parsing.tag_calls import TagsReader
from jaxserve.chat_parsing.template import Field, Marker, ResponseTemplate, Role
from jaxserve.chat_parsing.tools import Tool
from jaxserve.chat_parsing.whole_calls import WholeReader

_MAX_MARKER = 65_536  # characters; a longer one is text

# "stray": the end of thinking that nothing began.
_Side = Literal["open", "close", "stray"]


@dataclass(frozen=True, slots=True)
class _Hit:
    field: Field
    side: _Side
    match: Match


class ChatParser:
    """Reads one response.

    What looks like the beginning of a marker is held back until it is one or is not. Nothing is lost: what is no call
    after all is content. The deltas of `feed` and `finish`, joined, do not depend on how the text was cut into pieces.

    What models leave out is recovered where only one reading is left:

    - The end of thinking without a beginning, before all calls and outside of quotes: the content so far was thinking.
    - A beginning of thinking right after another one, such as the prompt's, is dropped.
    - A marker that begins a call ends the call before it.
    - A response that stops inside a string of a call: the markers in that string are markers, and are read again.
    - A response whose content has markers and that has neither content nor calls: its text outside of markers is content.

    Work is linear in the text: `meter` counts the characters that were examined or copied, each once per step of the reading.
    """

    def __init__(
        self, template: ResponseTemplate, *, prompt: str = "", tools: Iterable[Tool] | None = None, has_form: bool = False
    ) -> None:
        """Begin a response.

        Args:
            template: how the model writes.
            prompt: the text of the prompt with its special tokens, or the end of it: what it has of the assistant's turn
                is read first, so that a response to a prompt that ends in ``<think>`` begins inside reasoning.
            tools: those that may be called. With none at all, calls are not looked for and their text is content. None:
                a call may have any name.
            has_form: whether a grammar gives the content a form. Thinking and calls then come before content or not at all, and
                their markers inside content are text.
        """
        self._fields = dict(template.fields)
        known = None if tools is None else {tool.name: tool for tool in tools}
        content = self._fields.get("content")
        if known is not None and not known:
            self._fields.pop("tool_calls", None)
            if content is not None and content.open is None:  # what closes it is markup of calls, or the end of the turn
                del self._fields["content"]
        self._has_form = has_form
        self._drops_rest = content is not None and content.open is not None
        self._openings = tuple(_openings(self._fields.values(), has_stray=not has_form and not self._drops_rest))
        self._deltas: list[Delta] = []
        self.meter = Meter()
        self._content_field = template.fields.get("content")
        self._texts: dict[Role, _Text] = {role: _Text(template.fields.get(role), self.meter) for role in ("reasoning", "content")}
        self._start = template.start
        self._dropped: list[str] = []  # text outside of marked content
        self._sent_content = False
        self._has_thought = False
        reasoning = template.fields.get("reasoning")
        self._keeps_thinking = reasoning is not None and bool(reasoning.options.get("in_content"))
        self._is_blank = False  # whether the reasoning that is open has no text yet
        self._sink = CallSink(self._deltas, known, self.meter)
        self._stream = TextStream(self.meter)
        self._searches: dict[tuple[Role, _Side], Search | RowSearch] = {}
        self._current: Field | None = None
        self._reader: CallReader | None = None
        self._opened: tuple[str, Mapping[str, str]] = ("", {})  # the marker of the calls that are open, and its groups
        self._swallowed = False  # whether a string of theirs has a marker in it
        self._is_second = False  # whether markers in strings are markers
        self._own_from = 0  # where the model's own text begins
        self._empty_hit_at = -1
        self._read_prompt(template, prompt)

    @property
    def in_reasoning(self) -> bool:
        """Whether what was read so far ends inside reasoning."""
        return self._current is not None and self._current.role == "reasoning"

    def feed(self, text: str) -> list[Delta]:
        self._stream.push(text)
        self._process(final=False)
        return self._take()

    def finish(self, *, stopped: bool = True) -> list[Delta]:
        """The rest. `stopped`: a token or text that ends it ended the response; false where it was cut off."""
        current, reader = self._current, self._reader
        if not stopped and current is not None and current.close is not None and reader is not None and reader.ended_any:
            closing = self._search(current, "close", current.close)
            if closing.certain_to <= self._stream.at:
                self._stream.at = self._stream.end  # the marker after a whole call, cut off
        self._process(final=True)
        if stopped and self._reader is not None and self._reader.inside_string and self._swallowed:
            self._read_again(self._reader)
        if self._reader is not None:
            if stopped or isinstance(self._reader, SecondReading):
                self._close_calls(self._reader, "")
            elif not self._sink.is_open:
                self._write("content", self._reader.unread)
        if stopped and not self._texts["content"].has_text and not self._sink.has_calls:
            self._recover_dropped()
        return self._take()

    def _take(self) -> list[Delta]:
        was_reasoning = self._sent_content and any(isinstance(delta, ContentWasReasoning) for delta in self._deltas)
        taken = merged(settled(self._deltas))
        if was_reasoning:
            taken.insert(0, ContentWasReasoning())
        self._sent_content = self._sent_content or any(isinstance(delta, ContentDelta) for delta in taken)
        self._deltas.clear()
        return taken

    def _read_again(self, reader: CallReader) -> None:
        """Read the unread text of a region again, in which a string that does not end has swallowed markers."""
        assert self._current is not None
        opening, text, _ = reader.remains
        self._sink.fail()
        self._is_second = True
        self._reader = _reader(self._current, self._opened, opening, self._sink)
        self._searches.clear()
        self._stream.push(text)
        self._process(final=True)

    def _recover_dropped(self) -> None:
        """Make the text outside of marked content the content of a response that has no other."""
        text = "".join(self._dropped)
        for start in self._start.literals:
            text = text.replace(start, "")
        self._write("content", text)

    def _read_prompt(self, template: ResponseTemplate, prompt: str) -> None:
        tail = template.tail(prompt)
        reasoning = self._fields.get("reasoning")
        if tail is None and reasoning is not None and reasoning.open is not None:
            # A prompt of another shape still says that much: it ends with the mark that begins thinking.
            opened = [found for found in find_all(reasoning.open.pattern, prompt) if found.end > found.start]
            if opened and not prompt[opened[-1].end :].strip():
                tail = prompt[opened[-1].start : opened[-1].end]
        self.feed(tail or "")
        self._own_from = self._stream.end
        self._sink.restart()
        self._dropped.clear()
        for text in self._texts.values():
            text.forget_held()
        if self.in_reasoning and reasoning is not None and reasoning.open is not None:
            self._keep_marker(reasoning.open.shortest_text or "")

    def _process(self, *, final: bool) -> None:
        stream = self._stream
        while True:
            hit, certain_to = self._next_hit(final=final)
            if hit is None:
                self._read_to(certain_to)
                break
            self._read_to(hit.match.start)
            if self._is_in_form(hit):
                self._openings = tuple(opening for opening in self._openings if opening[1] == "close")
                continue
            if hit.side == "stray" and (self._has_thought or self._sink.has_calls):
                self._openings = tuple(opening for opening in self._openings if opening[1] != "stray")
                continue
            if hit.match.end == hit.match.start:
                if self._empty_hit_at == stream.at:  # an empty marker, again: go on after the next character
                    if stream.at == stream.end:
                        break
                    self._read_to(stream.at + 1)
                    continue
                self._empty_hit_at = stream.at
            if self._reader is not None and self._reader.inside_string and not self._is_second:
                self._swallowed = True
                self._read_to(hit.match.end)
                continue
            if hit.side == "open" and self._current is not None:
                self._open_inside(hit)
                continue
            self._handle(hit, stream.take(hit.match.end))
        stream.forget(stream.at - MAX_LOOK_BEHIND)

    def _next_hit(self, *, final: bool) -> tuple[_Hit | None, int]:
        """The next marker, if it is certain; and how far the text is certain to be text."""
        certain_to = self._stream.end
        best: _Hit | None = None
        best_key: tuple[int, int] | None = None
        for field, side, marker in self._watched():
            search = self._search(field, side, marker)
            search.advance(final=final)
            match = search.match
            if match is None:
                certain_to = min(certain_to, search.certain_to)
                continue
            key = (match.start, -match.end)  # the first one, of several there the longest
            if best_key is None or key < best_key:
                best, best_key = _Hit(field, side, match), key
        if best is not None and best.match.start >= certain_to and not final:
            best = None  # what may be a marker begins before it, or there
        return best, certain_to

    def _is_in_form(self, hit: _Hit) -> bool:
        """Whether a marker that begins something is part of content that has a form."""
        return self._has_form and hit.side == "open" and self._current is None and self._texts["content"].has_text

    def _search(self, field: Field, side: _Side, marker: Marker | None) -> Search | RowSearch:
        """The search for a marker from the reading position on: that of before unless it found something before it."""
        at = self._stream.at
        search = self._searches.get((field.role, side))
        if search is None or search.position < at or search.certain_to < at:
            if side == "close" and field.is_row:
                search = RowSearch(self._stream, at, None if marker is None else marker.pattern)
            else:
                assert marker is not None
                search = Search(marker.pattern, self._stream, at, limit=_MAX_MARKER)
            self._searches[field.role, side] = search
        return search

    def _watched(self) -> Sequence[tuple[Field, _Side, Marker | None]]:
        current = self._current
        if current is None:
            return self._openings
        if current.is_row:
            return ((current, "close", current.close),)
        if current.close is None:
            return ()
        if self._is_blank or current.role == "tool_calls":
            return ((current, "close", current.close), (current, "open", current.open))
        return ((current, "close", current.close),)

    def _read_to(self, end: int) -> None:
        self._stream.at = max(self._stream.at, min(end, self._own_from))
        text = self._stream.take(end)
        current = self._current
        if current is None:
            if self._drops_rest:
                self._dropped.append(text)
            else:
                self._write("content", text)
        elif current.role != "tool_calls":
            self._is_blank = self._is_blank and not text.strip()
            self._write(current.role, text)
        elif self._reader is None:
            self._write("content", text)
        else:
            try:
                self._reader.feed(text)
            except MalformedCallError:
                self._sink.fail()
                self._give_back(self._reader)

    def _write(self, role: Role, text: str) -> None:
        if role == "reasoning" and self._keeps_thinking:
            role = "content"
        if written := self._texts[role].feed(text):
            self._deltas.append(ReasoningDelta(written) if role == "reasoning" else ContentDelta(written))

    def _handle(self, hit: _Hit, marker: str) -> None:
        match hit.side:
            case "open":
                self._open(hit, marker)
            case "close":
                self._close(marker)
            case "stray":
                self._end_stray_thinking()

    def _open(self, hit: _Hit, marker: str) -> None:
        self._current = hit.field
        if hit.field.role == "tool_calls":
            self._opened, self._swallowed = (marker, hit.match.groups), False
            self._reader = _reader(hit.field, self._opened, marker, self._sink)
            self._read_to(self._stream.at)  # a name that is known begins its call
        elif hit.field.role == "reasoning":
            self._has_thought = self._is_blank = True
            self._keep_marker(marker)

    def _open_inside(self, hit: _Hit) -> None:
        """Handle an opening marker inside a region of its own kind: it ends calls, and is dropped in blank reasoning."""
        if hit.field.role == "tool_calls":
            self._close("")
        elif self._is_blank:
            self._stream.take(hit.match.end)

    def _end_stray_thinking(self) -> None:
        """Turn the content so far into reasoning."""
        self._deltas.append(ContentWasReasoning())
        self._texts["reasoning"] = self._texts["content"]
        self._texts["reasoning"].forget_held()
        self._texts["content"] = _Text(self._content_field, self.meter)
        self._has_thought = True

    def _keep_marker(self, marker: str) -> None:
        """Write a marker of thinking that stays in the content."""
        if self._keeps_thinking:
            self._write("content", marker)

    def _close(self, marker: str) -> None:
        current, self._current = self._current, None
        if current is None:  # the end of content that nothing began
            return
        self._is_blank = False
        if current.role != "tool_calls":
            self._texts[current.role].end_region()
            if current.role == "reasoning":
                self._keep_marker(marker)
        elif self._reader is None:
            self._write("content", marker)
        else:
            self._close_calls(self._reader, marker)
        self._reader = None

    def _close_calls(self, reader: CallReader, marker: str) -> None:
        try:
            self._write("content", reader.close(marker))
        except MalformedCallError:
            self._sink.fail()
            self._give_back(reader)
            if self._reader is not None:
                self._close_calls(self._reader, marker)
            elif not reader.remains.follows_calls:
                self._write("content", marker)

    def _give_back(self, reader: CallReader) -> None:
        """Read a broken call again if that may recover others; else it is content, and so is the rest of its region."""
        self._reader = reader.again()
        if self._reader is None:
            self._write("content", reader.unread)


class _Text:
    """The text of all regions of a role, without the white space around it.

    Attributes:
        has_text: whether there has been any.
    """

    def __init__(self, field: Field | None, meter: Meter) -> None:
        self._strips = field is None or bool(field.options.get("strip", True))
        self._join = None if field is None else field.join
        self._meter = meter
        self.has_text = False
        self._space: list[str] = []  # which may be the end
        self._begins_region = False

    def feed(self, text: str) -> str:
        self._meter.examined += len(text)
        space = ""
        if self._strips:
            if not self.has_text or self._begins_region:
                text = text.lstrip()
            kept = text.rstrip()
            space, text = text[len(kept) :], kept
        if text:
            if self._space:
                text = "".join((*self._space, text))
                self._space.clear()
            if self._begins_region and self.has_text:
                text = f"{self._join}{text}"
            self.has_text, self._begins_region = True, False
        if space:
            self._space.append(space)
        return text

    def end_region(self) -> None:
        if self._join is not None:
            self._space.clear()
            self._begins_region = True

    def forget_held(self) -> None:
        self._space.clear()
        self._begins_region = False


def _openings(fields: Iterable[Field], *, has_stray: bool) -> Iterator[tuple[Field, _Side, Marker]]:
    """The markers that are looked for outside of all regions."""
    for field in fields:
        if has_stray and field.stray_end is not None:
            yield field, "stray", field.stray_end
        if field.open is not None:
            yield field, "open", field.open
        elif field.close is not None:
            yield field, "close", field.close


def _is_bare(field: Field, marker: str) -> bool:
    """Whether nothing but their shape tells calls from JSON that is an answer: there is no marker, or any text may have it."""
    return not marker.strip() or ("unmarked" in field.writes and marker.strip() != field.writes.get("prelude"))


def _reader(field: Field, opened: tuple[str, Mapping[str, str]], opening: str, sink: CallSink) -> CallReader:
    """The reader of a region of calls: one that reads as text arrives, or else one that waits until the region is whole.

    `opened`: the marker and its groups. `opening`: the marker, unless a whole call follows it.
    """
    marker, captures = opened
    options, shape = field.options, field.shape
    if shape is None:
        return PythonCallsReader(sink, opening)
    call_id = captures.get(shape.id[0]) or None if shape.id else None
    named_by_marker = shape.name[0] != "content" and shape.arguments == ("content",) and not shape.each
    if field.kind == "json" and not options.get("allow_non_json"):
        if named_by_marker:
            return ArgumentsReader(sink, opening, captures.get(shape.name[0], ""), call_id, field.dialect)
        if len(shape.name) == len(shape.arguments) == 2 and shape.name[0] == "content" and shape.arguments[0] == "content":
            return EnvelopeReader(
                sink,
                opening,
                name_key=shape.name[1],
                arguments_key=shape.arguments[1],
                id_key=shape.id[1] if shape.id and len(shape.id) == 2 else None,
                known_keys_only=_is_bare(field, marker),
                is_list=shape.each,
                dialect=field.dialect,
            )
    if field.cut_tag is not None and named_by_marker:
        return TagsReader(sink, opening, captures.get(shape.name[0], ""), call_id, field.cut_tag, options.get("value_parser"))
    return WholeReader(sink, opening, field, {key: text for key, text in captures.items() if text})


def parse(
    template: ResponseTemplate, text: str, *, prompt: str = "", tools: Iterable[Tool] | None = None, stopped: bool = True
) -> Message:
    """The message that a whole response is."""
    parser = ChatParser(template, prompt=prompt, tools=tools)
    return collect([*parser.feed(text), *parser.finish(stopped=stopped)])
