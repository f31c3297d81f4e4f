"""Regular expressions read the other way: the shortest text that one matches, for grammars that write what parsers read."""

from __future__ import annotations

import re

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_OPTIONAL = re.compile(r"(?:[*?]|\{0?,\d*\})[?+]?")
_REPEATED = re.compile(r"(?:\+|\{\d+(?:,\d*)?\})[?+]?")
_GROUP = re.compile(r"\((?:\?(?:P<(\w+)>|:|(=|!|<=|<!)))?")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


def shortest_text(pattern: str) -> str | None:
    """The shortest text that a pattern matches, ``{name}`` for a named group; None where it is any of many texts."""
    text, rest = _alternatives(pattern, 0)
    return text if rest == len(pattern) else None


def leading_texts(pattern: str) -> list[str]:
    """The `leading_text` of each alternative of a pattern; alternatives that any text may begin are left out."""
    texts: list[str] = []
    at = 0
    while at <= len(pattern):
        _, end = _sequence(pattern, at)
        texts.append(leading_text(pattern[at:end]))
        at = end + 1
    return [text for text in texts if text]


def leading_text(pattern: str) -> str:
    """The text that every match begins with, as far as the pattern says it plainly (leading white space left out)."""
    rest = re.sub(r"^(?:\\s[*?])+", "", pattern)
    text = ""
    while found := re.match(r"\\([^\w\s])|([^\\\[\](){}.*+?|^$])", rest, re.DOTALL):
        if _OPTIONAL.match(rest, found.end()):
            break
        text += found[1] or found[2]
        rest = rest[found.end() :]
    return "" if rest.startswith("|") or "|" in re.sub(r"\\.|\([^()]*\)|\[[^\]]*\]", "", rest) else text


def _alternatives(pattern: str, at: int) -> tuple[str | None, int]:
    """The first branch's text, and where the group (or the pattern) ends."""
    first, at = _sequence(pattern, at)
    while at < len(pattern) and pattern[at] == "|":
        _, at = _sequence(pattern, at + 1)
    return first, at


def _sequence(pattern: str, at: int) -> tuple[str | None, int]:
    text: str | None = ""
    while at < len(pattern) and pattern[at] not in "|)":
        piece, at = _atom(pattern, at)
        if optional := _OPTIONAL.match(pattern, at):
            at = optional.end()
            continue
        if repeated := _REPEATED.match(pattern, at):
            at = repeated.end()
        text = None if text is None or piece is None else text + piece
    return text, at


def _atom(pattern: str, at: int) -> tuple[str | None, int]:
    character = pattern[at]
    if found := _GROUP.match(pattern, at):
        inside, end = _alternatives(pattern, found.end())
        if found[1]:
            inside = f"{{{found[1]}}}"
        return "" if found[2] else inside, end + 1
    if found := _CLASS.match(pattern, at):
        return None, found.end()
    if character == "\\" and at + 1 < len(pattern):
        escaped = pattern[at + 1]
        if escaped in "bBAZz":
            return "", at + 2
        if escaped == "s":
            return " ", at + 2
        return (None if escaped.isalnum() and escaped not in _ESCAPES else _ESCAPES.get(escaped, escaped)), at + 2
    if character in "^$":
        return "", at + 1
    return (None if character == "." else character), at + 1
