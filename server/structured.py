"""The form that an output must have, which every client says in words of its own: all become StructuredOutputsParams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.structured import FIELD, StructuredOutputsParams
from server.requests import in_words_of_client

MEMBERS = tuple(member.name for member in fields(StructuredOutputsParams))
OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")

# Fields that each stand for one kind: of older vLLMs, of llama.cpp's server, and of SGLang.
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "guided_json": "json",
        "guided_regex": "regex",
        "guided_choice": "choice",
        "guided_grammar": "grammar",
        "guided_json_object": "json_object",
        "grammar": "grammar",
        "json_schema": "json",
        "regex": "regex",
        "ebnf": "grammar",
        "choice": "choice",
        "json_object": "json_object",
        "structural_tag": "structural_tag",
    }
)
WHITESPACE = "guided_whitespace_pattern"


@dataclass(frozen=True, slots=True)
class Way:
    """One way in which a request says the form of its output.

    Attributes:
        path: what the client calls it.
        arguments: StructuredOutputsParams'.
        names: for errors, what the client calls these.
    """

    path: str
    arguments: Mapping[str, Any]
    names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Form:
    """What the ways of a request come to.

    Attributes:
        names: for errors, what the client calls parameters of the engine.
    """

    params: StructuredOutputsParams | None = None
    names: Mapping[str, str] = field(default_factory=dict)


def ways(given: Mapping[str, Any], prefix: str = "") -> list[Way]:
    """Those that are no more than a field: `structured_outputs`, and those that stand for one kind.

    Args:
        given: fields of the request; others are passed over, and so is what asks for nothing.
        prefix: what goes before their names to make them what the client calls them.

    Raises InvalidRequestError for an unknown member of `structured_outputs`.
    """
    found = []
    whole = given.get(FIELD) or {}
    unknown = min(whole.keys() - set(MEMBERS), default=None)
    if unknown is not None:
        path = f"{prefix}{FIELD}.{unknown}"
        raise InvalidRequestError(f"{path} is no field that this server knows", param=path)
    members = {name: whole[name] for name in MEMBERS if _asks(name, whole.get(name))}
    if members:
        names = {f"{FIELD}.{name}": f"{prefix}{FIELD}.{name}" for name in MEMBERS}
        found.append(Way(prefix + FIELD, members, {FIELD: prefix + FIELD, **names}))
    for name, kind in KINDS.items():
        if _asks(kind, given.get(name)):
            found.append(one_way(kind, given[name], prefix + name))
    return found


def one_way(kind: str, value: Any, path: str, owner: str | None = None) -> Way:
    """A way that is one value, at `path`, which may be a part of the field `owner`."""
    return Way(owner or path, {kind: value}, {f"{FIELD}.{kind}": path, FIELD: owner or path})


def form_of(found: Iterable[Way], whitespace: str | None = None, prefix: str = "") -> Form:
    """The parameters. Raises InvalidRequestError, in the client's words, for two ways at once or one that is malformed.

    Args:
        whitespace: of `guided_whitespace_pattern`, which says nothing alone.
    """
    every = list(found)
    if not every:
        return Form()
    first, *others = every
    if others:
        what = f"{others[0].path} cannot be given together with {first.path}: each says what the output looks like"
        raise InvalidRequestError(what, param=others[0].path)
    arguments, names = dict(first.arguments), dict(first.names)
    if whitespace:
        arguments["whitespace_pattern"] = whitespace
        names[f"{FIELD}.whitespace_pattern"] = prefix + WHITESPACE
    try:
        return Form(StructuredOutputsParams(**arguments), names)
    except InvalidRequestError as error:
        raise in_words_of_client(error, names) from error


def _asks(kind: str, value: Any) -> bool:
    """Whether it is given; an empty schema is one that anything satisfies."""
    return value not in (None, "", [], False) and (value != {} or kind == "json")
