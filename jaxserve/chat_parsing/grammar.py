"""Grammars of whole responses - thinking, calls, content - in the model's own format, as Lark for llguidance."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from jaxserve.chat_parsing.calls_grammar import CallsGrammar, call_markers
from jaxserve.chat_parsing.lark import Lark
from jaxserve.chat_parsing.patterns import leading_text
from jaxserve.chat_parsing.template import Field, ResponseTemplate
from jaxserve.chat_parsing.tools import Tool
from jaxserve.chat_parsing.writing import call_text
from jaxserve.errors import InvalidRequestError

_SPACE = r"/[ \n]{0,4}/"
_AHEAD = re.compile(r"\(\?=((?:[^()\\]|\\.)*)\)")

Thinking = Literal["none", "maybe", "open", "closed"]


def response_grammar(
    template: ResponseTemplate,
    tools: Sequence[Tool] = (),
    *,
    required: bool = False,
    parallel: bool = True,
    thinking: Thinking = "none",
    content: str = "",
    special_tokens: Mapping[str, int],
    end_tokens: Collection[str] = (),
    json_options: Mapping[str, Any],
) -> str:
    """The grammar of a response: thinking, and then calls of these tools with arguments of their schemas, or content.

    Args:
        tools: those that may be called; none: calls are no part of it.
        required: behind the thinking it is calls and nothing else; without it, a call that begins is whole.
        parallel: there may be several calls.
        thinking: where the grammar begins. `none`: at the answer. `maybe`: before thinking, if there is any. `open`: inside
            thinking. `closed`: right behind the text that ends thinking (`template.reasoning.end`).
        content: the name of another grammar that the content is of; if there is none it is any text, among which calls may come.
        special_tokens: text and id of the tokens that llguidance knows by id alone: special ones, and added ones like <...>.
        end_tokens: the texts of those that end a response; a format that ends a call with one leaves that to the engine.
        json_options: llguidance's options for JSON in calls.

    Where the template does not say how calls are written, or what they begin with, all tokens may come that do not end the
    response. Raises InvalidRequestError if calls are required then, or the format cannot hold a schema.
    """
    lark = Lark(special_tokens, json_options)
    message = _Message(lark, template)
    calls: CallsGrammar | None = None
    if tools:
        calls = message.calls(tools, parallel=parallel, end_tokens=end_tokens, apart=bool(content))
        if required and calls is None:
            raise InvalidRequestError("this model's response template does not say how it writes calls", param="tool_choice")
    if calls is not None and required:
        body = calls.calls()
    elif message.marked is not None or content or not tools:
        answer = message.answer(f"@{content}" if content else lark.text_without([]))
        body = answer if calls is None else f"({calls.calls()} | {answer})"
    else:
        body = calls.among_text() if calls is not None and message.tells_calls else lark.anything(end_tokens)
    return f"start: {message.before(thinking, preamble=required or not content)} {body}\n{lark.text}"


class _Message:
    def __init__(self, lark: Lark, template: ResponseTemplate) -> None:
        self._lark, self._template = lark, template
        self._field = template.fields.get("tool_calls")
        self._text = call_text(self._field) if self._field is not None else None
        content = template.fields.get("content")
        self.marked = content if content is not None and content.open is not None else None
        """The content, if it has marks, as all parts of the message have then."""

    @property
    def tells_calls(self) -> bool:
        """Whether calls can be told from text."""
        return self._text is not None and bool(self._text.trigger or self._text.unmarked)

    def calls(self, tools: Sequence[Tool], *, parallel: bool, end_tokens: Collection[str], apart: bool) -> CallsGrammar | None:
        """None if the template does not say how they are written."""
        if self._field is None or self._text is None:
            return None
        return CallsGrammar(self._lark, self._field, self._text, tools, parallel=parallel, end_tokens=end_tokens, apart=apart)

    def answer(self, content: str) -> str:
        """Content, with the marks that it has."""
        field = self.marked
        if field is None or field.open is None:
            return content
        return f"{self._lark.literal(field.writes.get('open') or field.open.shortest_text or '')} {content}"

    def before(self, state: Thinking, *, preamble: bool) -> str:
        """What comes before answer and calls; with `preamble` also what a format with marks may have before calls."""
        parts = [] if self.marked is None or not preamble else [self._preamble(self.marked)]
        start = ""
        reasoning = self._template.reasoning
        if reasoning is not None and state != "none":
            closing = self._template.fields["reasoning"].writes.get("close", reasoning.end)
            after = closing.partition(reasoning.end)[2]
            space = self._lark.rule("SPACE", _SPACE)
            behind = self._lark.literal(after) if after.strip() else space
            inside = f"{self._lark.until(reasoning.end, without=ends_of_thinking(self._template))} {behind}"
            parts.append(f"{space} {self._lark.literal(reasoning.begin)} {inside}")
            start = behind if state == "closed" else inside if state == "open" or not reasoning.begin else ""
        if self.marked is not None:
            repeated = " | ".join(filter(None, parts))
            return f"{start} ({repeated})*" if repeated else start
        return start or (f"({parts[0]})?" if parts else "")

    def _preamble(self, content: Field) -> str:
        writes = content.writes
        if "preamble_open" not in writes or content.close is None:
            return ""
        body = self._lark.until(content.close.literals[0], writes["preamble_close"], without=content.close.literals)
        return f"{self._lark.literal(writes['preamble_open'])} {body}"


def ends_of_thinking(template: ResponseTemplate) -> Sequence[str]:
    """The texts by which the parser takes thinking for ended, beside the one that ends it in a grammar."""
    thinking, calls = template.fields.get("reasoning"), template.fields.get("tool_calls")
    if thinking is None or thinking.close is None or thinking.close.literals:
        return () if thinking is None or thinking.close is None else thinking.close.literals
    if ahead := [leading_text(found) for found in _AHEAD.findall(thinking.close.source)]:
        return ahead
    text = None if calls is None else call_text(calls)
    return () if calls is None or text is None else call_markers(calls, text)
