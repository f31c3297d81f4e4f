"""The grammar of ResponseParams: thinking, then calls of tools or content, as the model's family writes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llguidance import LLMatcher

from jaxserve.chat_parsing import ResponseTemplate, Tool, load_template, read_tools, response_grammar
from jaxserve.errors import InvalidRequestError
from jaxserve.grammar.budget import Budget
from jaxserve.grammar.compile import compile_grammar
from jaxserve.grammar.forcing import NO_FORCING, may_spell, names_special, patterns_of
from jaxserve.grammar.schema import prepared
from jaxserve.grammar.source import (
    grammar_source,
    json_options,
    lark_member,
    listed_grammars,
    loaded,
    named_grammar,
)
from jaxserve.grammar.structural_tag import with_options
from jaxserve.grammar.thinking import ThinkingMarks, ThinkingText
from jaxserve.grammar.tree import types
from jaxserve.grammar.vocabulary import Vocabulary
from jaxserve.sampling.response import ResponseParams
from jaxserve.sampling.structured import FIELD
from jaxserve.untrusted import refused

_CONTENT = "content"  # the name of its grammar
_ANNOTATIONS = frozenset({"title", "description", "$comment"})
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def response_source(params: ResponseParams, vocabulary: Vocabulary) -> tuple[str, ThinkingText | None, LLMatcher]:
    """The grammar as llguidance reads it, how a budget ends the thinking (None if it cannot), and the compiled grammar.

    A tool that may be called as the model likes, and is not strict, is called with any object where its schema is not supported.

    Raises InvalidRequestError naming the tool's schema, or the content, and the place in it that cannot be held to.
    """
    with refused("tools" if params.tools else params.param):
        return _compiled(params, vocabulary)


def _compiled(params: ResponseParams, vocabulary: Vocabulary) -> tuple[str, ThinkingText | None, LLMatcher]:
    template = _template(params)
    form = _Form(params, template, vocabulary)
    tools = list(_tools(params))
    try:
        source, matcher = form.compile(tools)
    except InvalidRequestError as error:
        if error.param == "tool_choice":
            raise
        if params.content is not None and not params.required:  # alone, it says where in itself it fails
            compile_grammar(grammar_source(params.content, vocabulary.special), vocabulary.tokens, params.content.param)
        possible = [form.possible(tool) for tool in tools]
        if possible == tools:
            raise
        source, matcher = form.compile(possible)
    if params.thinking == "none":
        return source, None, matcher
    thinking = ThinkingText.of(template, begun=params.thinking == "open")
    can_be_ended = thinking is not None and ThinkingMarks(thinking, vocabulary).can_be_ended(matcher.deep_copy())
    return source, thinking if can_be_ended else None, matcher


@dataclass(frozen=True, slots=True)
class _ResponseTool:
    """`path`: what the client calls its schema. `held`: a schema that is not supported is refused."""

    tool: Tool
    path: str
    held: bool

    def with_any_object(self) -> _ResponseTool:
        return replace(self, tool=Tool(self.tool.name, _ANY_OBJECT))


@dataclass(frozen=True, slots=True)
class _Form:
    params: ResponseParams
    template: ResponseTemplate
    vocabulary: Vocabulary

    def compile(self, tools: Sequence[_ResponseTool]) -> tuple[str, LLMatcher]:
        params, special = self.params, self.vocabulary.special
        member, forces = "", True
        if params.content is not None and not params.required:
            member, forces = named_grammar(params.content, _CONTENT, special)
        if any(_spells_special(tool.tool.parameters, special) for tool in tools):
            forces = False
        lark = self._lark(tools, _CONTENT if member else "") + ("" if forces else NO_FORCING)
        source = listed_grammars(lark_member(lark), member) if member else lark
        return source, compile_grammar(source, self.vocabulary.tokens, params.param)

    def possible(self, tool: _ResponseTool) -> _ResponseTool:
        """The tool, or with any object as its arguments if what it asks for cannot be compiled. Raises InvalidRequestError."""
        try:
            compile_grammar(self._lark([tool], "", required=True), self.vocabulary.tokens, tool.path)
        except InvalidRequestError as error:
            if not tool.held:
                return tool.with_any_object()
            if tool.tool.parameters:  # alone, errors have the place in it
                schema = with_options(tool.tool.parameters, json_options())
                alone = listed_grammars(f'{{"json_schema": {schema}}}')
                compile_grammar(alone, self.vocabulary.tokens, tool.path)
            message = error.message if error.message.startswith(tool.path) else f"{tool.path}: {error.message}"
            raise InvalidRequestError(message, param=tool.path) from error
        return tool

    def _lark(self, tools: Sequence[_ResponseTool], content: str, *, required: bool = False) -> str:
        params = self.params
        return response_grammar(
            self.template,
            [tool.tool for tool in tools],
            required=required or params.required,
            parallel=params.parallel,
            thinking=params.thinking,
            content=content,
            special_tokens=self.vocabulary.special,
            end_tokens=self.vocabulary.ends,
            json_options=json_options(),
        )


def _template(params: ResponseParams) -> ResponseTemplate:
    field = f"{FIELD}.template"
    try:
        return load_template(loaded(params.template, field))
    except ValueError as error:
        raise InvalidRequestError(f"{field} is not one that can be read: {error}", param=field) from error


def _tools(params: ResponseParams) -> Iterator[_ResponseTool]:
    items = loaded(params.tools, "tools") if params.tools else []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InvalidRequestError("tools must be a list of objects", param="tools")
    if params.tools and not items:
        raise InvalidRequestError("tools must be left out where there are none", param="tools")
    budget = Budget()
    for place, (item, tool) in enumerate(zip(items, read_tools(items), strict=True)):
        path, strict = item.get("path", f"tools[{place}].parameters"), item.get("strict", False)
        if not isinstance(path, str) or not isinstance(strict, bool):
            what = f"tools[{place}] must have a path that is a string, and strict that is true or false"
            raise InvalidRequestError(what, param="tools")
        found = _ResponseTool(tool, path, strict or params.required)
        try:
            yield replace(found, tool=Tool(tool.name, _of_object(tool.parameters, path, budget)))
        except InvalidRequestError:
            if found.held:
                raise
            yield found.with_any_object()


def _of_object(schema: Mapping[str, Any], path: str, budget: Budget) -> Mapping[str, Any]:
    """A schema prepared for llguidance. Raises InvalidRequestError naming what in it is not supported."""
    allowed = types(dict(schema))
    if allowed is not None and "object" not in allowed:
        raise InvalidRequestError(f"{path} must be the schema of an object: those of calls are one", param=path)
    made: Mapping[str, Any] = prepared(schema, path, budget=budget)
    return {**made, "type": "object"} if made else made


def _spells_special(schema: Mapping[str, Any], special_tokens: Iterable[str]) -> bool:
    named = any(names_special(text, special_tokens) for text in _texts(schema))
    return named or any(may_spell(pattern, special_tokens) for pattern in patterns_of(schema))


def _texts(schema: Any) -> Iterator[str]:
    """The texts that a schema may force."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += value.keys()
            waiting += (inner for name, inner in value.items() if name not in _ANNOTATIONS or not isinstance(inner, str))
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str):
            yield value
