"""Regular expressions as trees: the part of the syntax that an automaton can match in linear time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import regex

_QUANTIFIER = regex.compile(r"(?:(?P<sign>[*+?])|\{(?P<least>\d*)(?P<comma>,)?(?P<most>\d*)\})(?P<mode>[?+]?)")
_CLASS = regex.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", regex.DOTALL)
_ESCAPE = regex.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[^0-9a-zA-Z]|[dDsSwWnrtfva])", regex.DOTALL)
_GROUP = regex.compile(r"\((?:\?(?:P<(?P<name>\w+)>|<(?P<name>[A-Za-z_]\w*)>|(?P<plain>:)|(?P<look><?=)))?")
_MAX_REPEATS = 1000


@dataclass(frozen=True, slots=True)
class Character:
    """One character of a class. `source`: the class as a regular expression."""

    source: str


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Alternatives; the first one that matches is preferred."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    item: Node
    least: int
    most: int | None
    lazy: bool


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    item: Node


@dataclass(frozen=True, slots=True)
class Look:
    """A look-ahead, or a look-behind if `behind`."""

    item: Node
    behind: bool


@dataclass(frozen=True, slots=True)
class Anchor:
    at: Literal["start", "end"]


Node = Character | Sequence | Choice | Repeat | Group | Look | Anchor


def read_expression(source: str) -> Node:
    """Parse a regular expression, in which a dot matches any character.

    Raises ValueError for what is no regular expression and for syntax that needs backtracking: references to groups,
    negative look-arounds, word boundaries, possessive quantifiers, atomic groups and inline flags.
    """
    try:
        regex.compile(source, regex.DOTALL)
    except regex.error as error:
        raise ValueError(f"is not a regular expression: {error}") from error
    node, end = _choice(source, 0)
    if end != len(source):
        raise _unsupported(source, end)
    return node


def _unsupported(source: str, at: int) -> ValueError:
    return ValueError(f"has unsupported syntax at {source[at : at + 12]!r} (position {at}): it cannot be matched in linear time")


def _choice(source: str, at: int) -> tuple[Node, int]:
    first, at = _sequence(source, at)
    items = [first]
    while at < len(source) and source[at] == "|":
        item, at = _sequence(source, at + 1)
        items.append(item)
    return (items[0] if len(items) == 1 else Choice(tuple(items))), at


def _sequence(source: str, at: int) -> tuple[Node, int]:
    items: list[Node] = []
    while at < len(source) and source[at] not in "|)":
        start = at
        item, at = _atom(source, at)
        found = _QUANTIFIER.match(source, at)
        if found and (found["sign"] or found["least"] or found["most"]):
            if found["mode"] == "+" or isinstance(item, Look | Anchor):
                raise _unsupported(source, start)
            item, at = _repeat(item, found), found.end()
        items.append(item)
    return Sequence(tuple(items)), at


def _repeat(item: Node, found: regex.Match[str]) -> Repeat:
    lazy = found["mode"] == "?"
    if found["sign"]:
        return Repeat(item, int(found["sign"] == "+"), 1 if found["sign"] == "?" else None, lazy)
    least = int(found["least"] or 0)
    most = least if not found["comma"] else int(found["most"]) if found["most"] else None
    if max(least, most or 0) > _MAX_REPEATS:
        raise ValueError(f"repeats {found[0]}; the limit is {_MAX_REPEATS} times")
    return Repeat(item, least, most, lazy)


def _atom(source: str, at: int) -> tuple[Node, int]:
    character = source[at]
    if character == "(":
        return _group(source, at)
    if character == "[":
        found = _CLASS.match(source, at)
        if found is None or source.startswith("[[:", at):
            raise _unsupported(source, at)
        return Character(found[0]), found.end()
    if character == "\\":
        if source[at + 1 : at + 2] in ("A", "Z"):
            return Anchor("start" if source[at + 1] == "A" else "end"), at + 2
        found = _ESCAPE.match(source, at)
        if found is None:
            raise _unsupported(source, at)
        return Character(found[0]), found.end()
    if character == "^":
        return Anchor("start"), at + 1
    if character == "$":
        return Look(Sequence((Repeat(Character("\n"), 0, 1, lazy=False), Anchor("end"))), behind=False), at + 1
    return Character("." if character == "." else regex.escape(character)), at + 1


def _group(source: str, at: int) -> tuple[Node, int]:
    found = _GROUP.match(source, at)
    if found is None or (source.startswith("(?", at) and found.end() == at + 1):
        raise _unsupported(source, at)
    inside, end = _choice(source, found.end())
    if found["look"]:
        return Look(inside, behind=found["look"] == "<="), end + 1
    return (Group(found["name"], inside) if found["name"] else inside), end + 1
