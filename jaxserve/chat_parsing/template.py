"""The `response_template` of transformers (tokenizer_config.json), read and checked: how a model writes a response.

The format is described in transformers' documentation, "Response parsing". What is understood beside it: the content
`python-calls`, and `writes`, which is for grammars and says how a region is written where its patterns leave that open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import regex

from jaxserve.chat_parsing.automaton import Pattern
from jaxserve.chat_parsing.literals import Dialect, read_dialect
from jaxserve.chat_parsing.patterns import shortest_text
from jaxserve.chat_parsing.search import find_all

Role = Literal["reasoning", "content", "tool_calls"]
# transformers' own server says reasoning_content, its documentation thinking.
_ROLES: Mapping[str, Role] = {
    "thinking": "reasoning",
    "reasoning": "reasoning",
    "reasoning_content": "reasoning",
    "content": "content",
    "tool_calls": "tool_calls",
}
_TEMPLATE_KEYS = frozenset({"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"})
_MARKER_KEYS = frozenset({"open", "open_pattern", "close", "close_pattern"})
_FIELD_KEYS = _MARKER_KEYS | {
    "content", "content_args", "repeats", "join", "optional", "transform", "transform_each", "writes",
}  # fmt: skip
_WRITES: Mapping[Role, frozenset[str]] = {
    "reasoning": frozenset({"close", "early_close"}),
    "content": frozenset({"open", "preamble_open", "preamble_close"}),
    "tool_calls": frozenset({"trigger", "unmarked", "prelude", "begin", "call", "parameter", "between", "end"}),
}
CALL_KINDS = frozenset({"json", "xml-inline", "kv-lines", "python-calls"})
_LEAD = regex.compile(r"(?:\\[ns][*?])?$")
_VALUE_GROUP = regex.compile(r"\(\?P<value>(?:\.[*+]\??|\[\^[^\]]*\][*+]\??)\)")
PLACEHOLDER = regex.compile(r"\{(\w+(?:\.\w+)*)\}")


@dataclass(frozen=True, slots=True)
class Marker:
    """What opens or closes a region.

    Attributes:
        literals: the texts it is one of; none if it is a pattern.
        source: the pattern as it was given; empty if it is literals.
    """

    pattern: Pattern
    literals: tuple[str, ...] = ()
    source: str = ""

    @property
    def shortest_text(self) -> str | None:
        """How to write it; None if the pattern leaves that open."""
        return self.literals[0] if self.literals else shortest_text(self.source)


@dataclass(frozen=True, slots=True)
class TagPattern:
    """A tag's pattern cut at its value, which can be read so before it is whole.

    Attributes:
        lead: white space that may lead the value.
        end: what ends it: the rest of the tag, or the head of another one, whose `key` is a group of the match then.
    """

    head: Pattern
    lead: Pattern
    end: Pattern

    @property
    def tells_text(self) -> bool:
        """Whether a group of the tag says that its value is a string."""
        return "text" in self.head.group_tags

    @classmethod
    def cut(cls, pattern: str) -> TagPattern | None:
        """None if the value is anything but plain text between two patterns."""
        parts = _VALUE_GROUP.split(pattern)
        if len(parts) != 2 or "(?P<key>" not in parts[0]:
            return None
        lead = _LEAD.search(parts[0])
        assert lead is not None
        head, tail = parts[0][: lead.start()], parts[1]
        try:
            return cls(Pattern(head), Pattern(lead[0]), Pattern(rf"{tail}|\s*(?={head})"))
        except ValueError:
            return None


Place = tuple[str, ...]  # ("name",): a named group of a marker; ("content", "arguments"): keys of the region's content


@dataclass(frozen=True, slots=True)
class CallShape:
    """Where name, arguments and id of a call are, as `transform` says; `each`: in every element of a list."""

    name: Place
    arguments: Place
    id: Place | None
    each: bool


@dataclass(frozen=True, slots=True)
class Field:
    """One region of a response. `kind` is `content` of the format, `options` its `content_args`.

    Attributes:
        dialect: what the JSON of calls is written in, if it is another one.
        tag: of calls in tags, the pattern of a tag.
        cut_tag: the same cut at the tag's value, if it can be.
        stray_end: of reasoning, what ends it if it has no beginning; None if that may be any text.
    """

    role: Role
    open: Marker | None
    close: Marker | None
    kind: str
    options: Mapping[str, Any]
    join: str | None
    shape: CallShape | None
    writes: Mapping[str, str]
    dialect: Dialect | None = field(default=None, compare=False)
    tag: Pattern | None = None
    cut_tag: TagPattern | None = None
    stray_end: Marker | None = None

    @property
    def is_row(self) -> bool:
        """Whether its calls are objects of JSON, in a list or in a row, that need no marker after them."""
        if self.kind != "json" or self.shape is None or self.dialect is not None:
            return False
        return self.shape.name[0] == "content" and (self.close is None or "unmarked" in self.writes)


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How thinking is written.

    Attributes:
        begin: what begins it.
        end: what ends it, as short as it can be: after it come content or calls. Constraints begin after it.
        early_end: what to write to end it where its budget is spent, so that the answer comes next.
    """

    begin: str
    end: str
    early_end: str


@dataclass(frozen=True, slots=True)
class ResponseTemplate:
    """How one model writes a response. Immutable; one for all requests.

    Attributes:
        fields: the regions by role.
        start: what the assistant's turn begins with in a prompt.
        spec: the dict it was made of.
    """

    fields: Mapping[Role, Field]
    start: Marker
    spec: Mapping[str, Any]

    @property
    def reasoning(self) -> Reasoning | None:
        """None for a model that does not think, or for patterns that do not say how to write it."""
        field = self.fields.get("reasoning")
        if field is None or field.open is None or field.close is None:
            return None
        begin, end = field.open.shortest_text, field.close.shortest_text
        if begin is None or not end:
            return None
        return Reasoning(begin, end, field.writes.get("early_close", field.writes.get("close", end)))

    def visible_tokens(self, special_tokens: Iterable[str]) -> frozenset[str]:
        """Those of a tokenizer's special tokens that the parser must see in the text, which others are left out of."""
        markup = "\n".join(_texts(self.spec.get("fields")))
        plain = markup.replace("\\", "")
        return frozenset(token for token in special_tokens if token and (token in plain or token in markup))

    def tail(self, prompt: str) -> str | None:
        """What the prompt already has of the assistant's turn; None if it does not show where that begins."""
        if self.start.literals:
            ends = [at + len(text) for text in self.start.literals if (at := prompt.rfind(text)) >= 0]
        else:
            ends = [match.end for match in find_all(self.start.pattern, prompt)]
        return prompt[max(ends) :] if ends else None


def load_template(spec: Mapping[str, Any]) -> ResponseTemplate:
    """Check and compile a template. Raises ValueError with the place of what is wrong."""
    if not isinstance(spec, Mapping):
        raise ValueError(f"response_template must be an object, not {type(spec).__name__}")
    if spec.get("version", 1) != 1:
        raise ValueError(f"response_template.version {spec['version']!r} is not known; 1 is")
    if unknown := sorted(set(spec) - _TEMPLATE_KEYS):
        raise ValueError(f"response_template has unknown keys: {', '.join(unknown)}")
    raw = spec.get("fields")
    if not isinstance(raw, Mapping) or not raw:
        raise ValueError("response_template.fields must be an object with at least one field")
    fields: dict[Role, Field] = {}
    for name, region in raw.items():
        role = _ROLES.get(name)
        if role is None or role in fields:
            raise ValueError(f"response_template.fields has {name}; one each of thinking, content and tool_calls can be served")
        fields[role] = _field(f"fields.{name}", role, region)
    if sum(item.open is None for item in fields.values()) > 1:
        raise ValueError("response_template: at most one field may do without open and open_pattern")
    if any(item.open is None and role != "content" for role, item in fields.items()):
        raise ValueError("response_template: only content may do without open and open_pattern")
    start = _marker("response_template", spec, "start_anchor", "start_anchor_pattern")
    if start is None:
        raise ValueError("response_template needs start_anchor or start_anchor_pattern")
    return ResponseTemplate(fields, start, spec)


def _field(scope: str, role: Role, spec: Any) -> Field:
    if not isinstance(spec, Mapping):
        raise ValueError(f"{scope} must be an object")
    if unknown := sorted(set(spec) - _FIELD_KEYS):
        raise ValueError(f"{scope} has unknown keys: {', '.join(unknown)}")
    kind, options, writes = spec.get("content", "text"), spec.get("content_args", {}), spec.get("writes", {})
    if role == "tool_calls" and kind not in CALL_KINDS:
        raise ValueError(f"{scope}.content is {kind!r}; calls are one of {', '.join(sorted(CALL_KINDS))}")
    if role != "tool_calls" and (kind != "text" or spec.get("transform") is not None):
        raise ValueError(f"{scope} must have the content text and no transform, so that it can be streamed")
    if not isinstance(options, Mapping):
        raise ValueError(f"{scope}.content_args must be an object")
    if not isinstance(writes, Mapping) or not set(writes) <= _WRITES[role]:
        raise ValueError(f"{scope}.writes may have {', '.join(sorted(_WRITES[role]))}")
    open_marker = _marker(scope, spec, "open", "open_pattern")
    join = spec.get("join")
    if join is not None and not isinstance(join, str):
        raise ValueError(f"{scope}.join must be a string")
    shape = None
    if role == "tool_calls" and kind != "python-calls":
        groups = frozenset(open_marker.pattern.group_tags) if open_marker else frozenset()
        shape = _call_shape(scope, spec.get("transform"), each=bool(spec.get("transform_each")), groups=groups)
    close_marker = _marker(scope, spec, "close", "close_pattern")
    tag = _pattern(f"{scope}.content_args.tag_pattern", options.get("tag_pattern", "")) if kind == "xml-inline" else None
    cut_tag = TagPattern.cut(tag.source) if tag is not None and not options.get("merge_duplicates") else None
    try:
        dialect = read_dialect(options)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{scope}.content_args: {error}") from error
    stray_end = _stray_end(close_marker) if role == "reasoning" and close_marker is not None else None
    return Field(role, open_marker, close_marker, kind, options, join, shape, writes, dialect, tag, cut_tag, stray_end)


def _stray_end(close: Marker) -> Marker | None:
    """The end of thinking that nothing began: a tag, as words may be any text's, and not in quotes, as text that names it."""
    texts = close.literals or ([close.shortest_text] if close.shortest_text else [])
    tags = [regex.escape(text) for text in texts if not text[0].isalnum() and text.strip()]
    return Marker(Pattern(rf"(?:^|(?<=[^`'\"]))(?:{'|'.join(tags)})")) if tags else None


def _marker(scope: str, spec: Mapping[str, Any], literal_key: str, pattern_key: str) -> Marker | None:
    if literal_key in spec and pattern_key in spec:
        raise ValueError(f"{scope} has both {literal_key} and {pattern_key}")
    if pattern_key in spec:
        source = spec[pattern_key]
        return Marker(_pattern(f"{scope}.{pattern_key}", source), source=source)
    if literal_key not in spec:
        return None
    literals = spec[literal_key] if isinstance(spec[literal_key], list) else [spec[literal_key]]
    if not literals or not all(isinstance(text, str) and text for text in literals):
        raise ValueError(f"{scope}.{literal_key} must be a text or a list of texts, none of them empty")
    longest_first = sorted(set(literals), key=len, reverse=True)
    return Marker(Pattern("|".join(map(regex.escape, longest_first))), tuple(literals))


def _pattern(scope: str, source: Any) -> Pattern:
    try:
        return Pattern(source)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{scope} {error}") from error


def _call_shape(scope: str, transform: Any, *, each: bool, groups: frozenset[str]) -> CallShape:
    function = transform.get("function") if isinstance(transform, Mapping) else None
    if isinstance(function, str) and PLACEHOLDER.fullmatch(function):
        function = {"name": f"{function[:-1]}.name}}", "arguments": f"{function[:-1]}.arguments}}"}
    if not isinstance(function, Mapping):
        raise ValueError(f"{scope}.transform must have a function with a name and arguments")
    places: dict[str, Place] = {}
    for key, text in {**function, "id": transform.get("id")}.items():
        found = PLACEHOLDER.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            continue
        path = tuple(found[1].split("."))
        is_own_key = each and path[0] not in groups  # of an element, whose keys stand beside the groups
        places[key] = ("content", *path) if is_own_key else path
    if not {"name", "arguments"} <= places.keys():
        raise ValueError(f"{scope}.transform.function must have the placeholders name and arguments")
    for place in places.values():
        if place[0] != "content" and place[0] not in groups:
            raise ValueError(f"{scope}.transform names {place[0]}, which is neither content nor a group of open_pattern")
    return CallShape(places["name"], places["arguments"], places.get("id"), each)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in cast("Mapping[str, Any]", value).values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
