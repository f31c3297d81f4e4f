"""Special tokens that users, tools and documents spell out: marked before a chat template runs, so that they stay text."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from jaxserve.tokenizer.base import Tokenizer

MARK = "\ufdd0"  # a noncharacter: Unicode reserves it for use inside of programs
_ESCAPED_MARK = "\\ufdd0"  # as JSON may write it
TRUSTED_ROLES = frozenset({"assistant", "system", "developer"})
UNTRUSTED_ARGUMENTS = ("tools", "documents")
_NAMES = frozenset({"role", "type"})  # keys of messages whose values are names


class ControlTokens:
    """The special tokens of a tokenizer, as texts that untrusted strings must not turn into.

    `mark` puts a mark inside each special token that an untrusted string spells, and inside what may become one next to
    other text (``<|e`` at the end of a string, ``nd|>`` at the beginning of the next). The template carries the marks along.
    `settle` keeps those marks of the rendered text that are inside of a special token.
    """

    def __init__(self, names: Iterable[str]) -> None:
        texts = sorted({name for name in names if len(name) > 1}, key=len, reverse=True)
        self._longest = len(texts[0]) if texts else 0
        seconds: dict[str, set[str]] = {}
        for text in texts:
            seconds.setdefault(text[0], set()).add(text[1])
        heads = (f"{re.escape(one)}(?=[{re.escape(''.join(sorted(two)))}])" for one, two in seconds.items())
        self._heads = re.compile("|".join(heads) or r"(?!)", re.IGNORECASE)
        alternatives = _longest_of(texts) if texts else r"(?!)"
        self._exact = re.compile(alternatives)
        self._any_case = re.compile(alternatives, re.IGNORECASE)
        lower = [text.lower() for text in texts]
        self._prefixes = {text[:n] for text in lower for n in range(1, len(text))}
        self._suffixes = {text[n:] for text in lower for n in range(1, len(text))}
        self._joined = "\n".join(lower)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ControlTokens:
        return cls(tokenizer.special_token_texts)

    def mark(
        self, messages: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]
    ) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]]:
        """The messages and the template's variables with marks; the same objects if there is nothing to mark.

        Messages of the assistant, the system and the developer are left as they are.
        """
        marked = [
            _mapped(message, self._marked_in_message, self._marked)
            if isinstance(message, Mapping) and message.get("role") not in TRUSTED_ROLES
            else message
            for message in messages
        ]
        found = {
            name: _mapped(arguments[name], self._marked, self._marked) for name in UNTRUSTED_ARGUMENTS if arguments.get(name)
        }
        is_same = all(one is other for one, other in zip(marked, messages, strict=True))
        if is_same and all(value is arguments[name] for name, value in found.items()):
            return messages, arguments
        return marked, {**arguments, **found}

    def settle(self, text: str) -> tuple[str, bool]:
        """A rendered text with marks only inside of special tokens of untrusted origin; and whether there are any."""
        parts = text.replace(_ESCAPED_MARK, MARK).split(MARK)
        clean = "".join(parts)
        places = list(accumulate(map(len, parts)))[:-1]
        cuts = []
        for head in self._heads.finditer(clean) if places else ():
            found = self._exact.match(clean, head.start())
            if found is not None:
                place = bisect_right(places, found.start())
                if place < len(places) and places[place] < found.end():
                    cuts.append(found.start() + 1)
        return _insert(clean, cuts), bool(cuts)

    def _marked(self, text: str) -> str:
        places = {head.end() for head in self._heads.finditer(text) if self._any_case.match(text, head.start())}
        begin, end = len(text) - len(text.lstrip()), len(text.rstrip())
        last = text[max(begin, end - self._longest) : end].lower()
        first = text[begin : begin + self._longest].lower()
        places |= {end - n + 1 for n in range(1, len(last) + 1) if last[-n:] in self._prefixes}
        places |= {begin + n - 1 for n in range(1, len(first) + 1) if first[:n] in self._suffixes}
        return _insert(text, sorted(places)) if places else text

    def _marked_in_message(self, text: str) -> str:
        marked = self._marked(text)
        stripped = text.strip()
        if marked is text and 0 < len(stripped) < self._longest and stripped.lower() in self._joined:
            return _insert(text, [text.index(stripped)])  # the template may write the rest of a special token around it
        return marked


def _longest_of(texts: Iterable[str]) -> str:
    """A regular expression for the longest of some texts that comes next; each character is compared once."""
    texts = set(texts)
    first, last = min(texts), max(texts)  # all others begin with what these two share
    length = next((place for place, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    rests = {text[length:] for text in texts}
    branches: dict[str, set[str]] = {}
    for rest in rests - {""}:
        branches.setdefault(rest[0], set()).add(rest)
    choice = f"(?:{'|'.join(map(_longest_of, branches.values()))})" if branches else ""
    return re.escape(first[:length]) + choice + ("?" if branches and "" in rests else "")


def _insert(text: str, places: Sequence[int]) -> str:
    bounds = [0, *places, len(text)]
    return MARK.join(text[start:end] for start, end in pairwise(bounds))


def _mapped(value: Any, change: Callable[[str], str], change_name: Callable[[str], str]) -> Any:
    """A JSON-like value with every text changed, keys and values that templates compare as names; the same if none changes."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        pairs = [
            (
                change_name(key) if isinstance(key, str) else key,
                _mapped(item, change_name if key in _NAMES else change, change_name),
            )
            for key, item in value.items()
        ]
        is_same = all(key is old_key and item is old for (key, item), (old_key, old) in zip(pairs, value.items(), strict=True))
        return value if is_same else dict(pairs)
    if isinstance(value, list | tuple):
        items = [_mapped(item, change, change_name) for item in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value
