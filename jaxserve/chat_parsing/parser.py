"""One parser for all families: a response's text in pieces of any size, in; reasoning, content and calls, out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import regex

from jaxserve.chat_parsing.calls import CallReader, CallSink, MalformedCallError
from jaxserve.chat_parsing.json_calls import ArgumentsReader, EnvelopeReader
from jaxserve.chat_parsing.literals import Literals, PythonCallsReader
from jaxserve.chat_parsing.message import ContentDelta, Delta, Message, ReasoningDelta, collect, merged
from jaxserve.chat_parsing.tag_calls import TagPattern, TagsReader
from jaxserve.chat_parsing.template import Field, Marker, ResponseTemplate, Role
from jaxserve.chat_parsing.tools import Tool
from jaxserve.chat_parsing.whole_calls import WholeReader

_LOOK_BEHIND = 64  # characters before the place of reading that stay, for patterns that look at them
_TRIMMED_AT = 4096


@dataclass(frozen=True, slots=True)
class _Hit:
    field: Field
    opens: bool
    match: regex.Match[str]


class ChatParser:
    """Reads one response.

    What looks like the beginning of a marker is held back until it is one or is not. Nothing is lost: what is no call
    after all is content. The deltas of `feed` and `finish`, joined, do not depend on how the text was cut into pieces.
    """

    def __init__(self, template: ResponseTemplate, *, prompt: str = "", tools: Iterable[Tool] | None = None) -> None:
        """Begin a response.

        Args:
            template: how the model writes.
            prompt: the text of the prompt with its special tokens, or the end of it: what it has of the assistant's turn
                is read first, so that a response to a prompt that ends in ``<think>`` begins inside reasoning.
            tools: those that may be called. With none at all, calls are not looked for and their text is content. None:
                a call may have any name.
        """
        self._fields = dict(template.fields)
        known = None if tools is None else {tool.name: tool for tool in tools}
        content = self._fields.get("content")
        if known is not None and not known:
            self._fields.pop("tool_calls", None)
            if content is not None and content.open is None:  # what closes it is markup of calls, or the end of the turn
                del self._fields["content"]
        self._drops_rest = content is not None and content.open is not None
        self._deltas: list[Delta] = []
        self._texts: Mapping[Role, _Text] = {role: _Text(template.fields.get(role)) for role in ("reasoning", "content")}
        self._sink = CallSink(self._deltas, known)
        self._buffer, self._at = "", 0
        self._current: Field | None = None
        self._reader: CallReader | None = None
        self._own_from = 0  # where the model's own text begins
        self._empty_hit_at = -1
        self._read_prompt(template, prompt)

    @property
    def in_reasoning(self) -> bool:
        """Whether what was read so far ends inside reasoning."""
        return self._current is not None and self._current.role == "reasoning"

    def feed(self, text: str) -> list[Delta]:
        self._buffer += text
        self._process(final=False)
        return self._take()

    def finish(self, *, stopped: bool = True) -> list[Delta]:
        """The rest. `stopped`: a token or text that ends it ended the response; false where it was cut off."""
        current, rest = self._current, self._buffer[self._at :]
        closing = current.close if current is not None and self._reader is not None and self._reader.ended_any else None
        if closing is not None and not stopped and closing.pattern.fullmatch(rest, partial=True):
            self._at = len(self._buffer)  # the marker after a whole call, cut off
        self._process(final=True)
        if self._reader is not None:
            if stopped:
                self._close_calls(self._reader, "")
            elif not self._sink.is_open:
                self._give_back(self._reader)
        return self._take()

    def _take(self) -> list[Delta]:
        taken = merged(self._deltas)
        self._deltas.clear()
        return taken

    def _read_prompt(self, template: ResponseTemplate, prompt: str) -> None:
        tail = template.tail(prompt)
        reasoning = self._fields.get("reasoning")
        if tail is None and reasoning is not None and reasoning.open is not None:
            # A prompt of another shape still says that much: it ends with the mark that begins thinking.
            opened = [found for found in reasoning.open.pattern.finditer(prompt) if found[0]]
            if opened and not prompt[opened[-1].end() :].strip():
                tail = opened[-1][0]
        self.feed(tail or "")
        self._own_from = len(self._buffer)
        self._sink.restart()
        for text in self._texts.values():
            text.forget_held()

    def _process(self, *, final: bool) -> None:
        while True:
            hit, certain_to = self._search(final=final)
            if hit is None:
                self._read_to(certain_to)
                break
            self._read_to(hit.match.start())
            if hit.match.end() == hit.match.start():
                if self._empty_hit_at == self._at:  # an empty marker, again: go on behind the next character
                    if self._at == len(self._buffer):
                        break
                    self._read_to(self._at + 1)
                    continue
                self._empty_hit_at = self._at
            if self._reader is not None and self._reader.inside_string:
                self._read_to(hit.match.end())
                continue
            self._at = hit.match.end()
            if hit.opens:
                self._open(hit)
            else:
                self._close(hit.match[0])
        if self._at > _TRIMMED_AT:
            cut = self._at - _LOOK_BEHIND
            self._buffer, self._at = self._buffer[cut:], _LOOK_BEHIND
            self._own_from, self._empty_hit_at = self._own_from - cut, self._empty_hit_at - cut

    def _search(self, *, final: bool) -> tuple[_Hit | None, int]:
        """The next marker, if it is certain; and how far the text is certain to be text."""
        certain_to = len(self._buffer)
        best: _Hit | None = None
        best_key: tuple[int, int] | None = None
        for field, opens, marker in self._watched():
            match = marker.pattern.search(self._buffer, self._at, partial=not final)
            if match is None:
                continue
            at_end = match.end() == len(self._buffer)
            if not final and (match.partial or (at_end and (match.start() == match.end() or marker.may_grow(match[0])))):
                certain_to = min(certain_to, match.start())
                continue
            key = (match.start(), -match.end())  # the first one, of several there the longest
            if best_key is None or key < best_key:
                best, best_key = _Hit(field, opens, match), key
        if best is not None and best.match.start() >= certain_to and not final:
            best = None  # what may be a marker begins before it, or there
        return best, certain_to

    def _watched(self) -> Iterable[tuple[Field, bool, Marker]]:
        if self._current is not None:
            if self._current.close is not None:
                yield self._current, False, self._current.close
            return
        for field in self._fields.values():
            if field.open is not None:
                yield field, True, field.open
            elif field.close is not None:
                yield field, False, field.close

    def _read_to(self, end: int) -> None:
        text = self._buffer[max(self._at, self._own_from) : end]
        self._at = end
        current = self._current
        if current is None:
            if not self._drops_rest:
                self._write("content", text)
        elif current.role != "tool_calls":
            self._write(current.role, text)
        elif self._reader is None:
            self._write("content", text)
        else:
            try:
                self._reader.feed(text)
            except MalformedCallError:
                self._give_back(self._reader)

    def _write(self, role: Role, text: str) -> None:
        if written := self._texts[role].feed(text):
            self._deltas.append(ReasoningDelta(written) if role == "reasoning" else ContentDelta(written))

    def _open(self, hit: _Hit) -> None:
        self._current = hit.field
        if hit.field.role == "tool_calls":
            self._reader = _reader(hit.field, hit.match, self._sink)
            self._read_to(self._at)  # a name that is known begins its call

    def _close(self, marker: str) -> None:
        current, self._current = self._current, None
        if current is None:  # the end of content that nothing began
            return
        if current.role != "tool_calls":
            self._texts[current.role].end_region()
        elif self._reader is None:
            self._write("content", marker)
        else:
            self._close_calls(self._reader, marker)
        self._reader = None

    def _close_calls(self, reader: CallReader, marker: str) -> None:
        try:
            reader.close()
        except MalformedCallError:
            self._give_back(reader)
            self._write("content", marker)

    def _give_back(self, reader: CallReader) -> None:
        """What is no call is content, and so is the rest of its region."""
        self._sink.fail()
        self._reader = None
        self._write("content", reader.unread)


class _Text:
    """The text of all regions of a role, without the white space around it."""

    def __init__(self, field: Field | None) -> None:
        self._strips = field is None or bool(field.options.get("strip", True))
        self._join = None if field is None else field.join
        self._has_text = False
        self._held = ""  # white space, which may be the end
        self._begins_region = False

    def feed(self, text: str) -> str:
        text = self._held + text
        self._held = ""
        if self._strips:
            if not self._has_text or self._begins_region:
                text = text.lstrip()
            kept = text.rstrip()
            self._held, text = text[len(kept) :], kept
        if text and self._begins_region and self._has_text:
            text = f"{self._join}{text}"
        if text:
            self._has_text, self._begins_region = True, False
        return text

    def end_region(self) -> None:
        if self._join is not None:
            self._held, self._begins_region = "", True

    def forget_held(self) -> None:
        self._held, self._begins_region = "", False


def _reader(field: Field, opened: regex.Match[str], sink: CallSink) -> CallReader:
    """What reads a region of calls as it arrives; where nothing can, what reads it when it is whole."""
    opening, captures, options, shape = opened[0], opened.groupdict(""), field.options, field.shape
    if shape is None:
        return PythonCallsReader(sink, opening)
    call_id = captures.get(shape.id[0]) or None if shape.id else None
    is_lax = options.get("unquoted_keys") or options.get("string_delims")
    dialect = Literals(options.get("string_delims", ())) if is_lax else None
    named_by_marker = shape.name[0] != "content" and shape.arguments == ("content",) and not shape.each
    if field.kind == "json" and not options.get("allow_non_json"):
        if named_by_marker:
            return ArgumentsReader(sink, opening, captures[shape.name[0]], call_id, dialect)
        if len(shape.name) == len(shape.arguments) == 2 and shape.name[0] == "content" and shape.arguments[0] == "content":
            return EnvelopeReader(
                sink,
                opening,
                name_key=shape.name[1],
                arguments_key=shape.arguments[1],
                id_key=shape.id[1] if shape.id and len(shape.id) == 2 else None,
                known_keys_only=not opening.strip(),
                dialect=dialect,
            )
    if field.kind == "xml-inline" and named_by_marker and not options.get("merge_duplicates"):
        pattern = TagPattern.cut(options.get("tag_pattern", ""))
        if pattern is not None:
            return TagsReader(sink, opening, captures[shape.name[0]], call_id, pattern, options.get("value_parser"))
    return WholeReader(sink, opening, field, {key: text for key, text in captures.items() if text})


def parse(
    template: ResponseTemplate, text: str, *, prompt: str = "", tools: Iterable[Tool] | None = None, stopped: bool = True
) -> Message:
    """The message that a whole response is."""
    parser = ChatParser(template, prompt=prompt, tools=tools)
    return collect([*parser.feed(text), *parser.finish(stopped=stopped)])
