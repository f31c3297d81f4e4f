"""Whether tokens that a grammar forces may be computed at once.

What is forced is tokenized as text, and the tokenizer takes the name of a special token for that token. So nothing is forced in a
grammar that may spell such a name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from jaxserve.sampling.structured import StructuredOutputsParams

# What a grammar forces is computed at once, and a few characters of one can force any number of others. The last line counts.
NO_FORCING = '\n%llguidance {"no_forcing": true}\n'

_BY_CODE = re.compile(r"\\[xuUpP]|&&|--|~~")  # how a regex writes a character without having it
_OF_REGEX = frozenset("\\.+*?()|[]{}^$#&-~/")
_NOT_WRITTEN = frozenset({"triggers", "type"})  # members of structural tags


def may_force(params: StructuredOutputsParams, source: str, special_tokens: Iterable[str]) -> bool:
    """Whether a form with this source spells no special token."""
    names = [name for name in special_tokens if name]
    if params.grammar is not None or names_special(source, names):
        return False
    patterns = [pattern for pattern in (params.regex, params.whitespace_pattern) if pattern is not None]
    for text in (params.json, params.structural_tag):
        if isinstance(text, str) and '"pattern' in text:
            patterns += patterns_of(json.loads(text))
    if any(may_spell(pattern, names) for pattern in patterns):
        return False
    if not isinstance(params.structural_tag, str):
        return True
    beginnings = tuple({name[:length] for name in names for length in range(1, len(name))})
    return not any(text.endswith(beginnings) for text in _written(json.loads(params.structural_tag)))


def names_special(text: str, special_tokens: Iterable[str]) -> bool:
    """Whether a text has the name of a special token."""
    return any(name in text for name in special_tokens)


def may_spell(pattern: str, special_tokens: Iterable[str]) -> bool:
    """Whether a regex may leave no choice but the name of a special token: whether it has the name's first character."""
    firsts = {name[0] for name in special_tokens if name}
    return bool(firsts) and (_BY_CODE.search(pattern) is not None or any(_has(pattern, first) for first in firsts))


def patterns_of(value: Any) -> Iterator[str]:
    """The regexes in a JSON schema or a structural tag."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            if isinstance(one.get("pattern"), str):
                yield one["pattern"]
            if isinstance(one.get("patternProperties"), dict):
                yield from one["patternProperties"]
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def _has(pattern: str, character: str) -> bool:
    """Whether a regex has a character as itself."""
    if character not in _OF_REGEX:
        return character in pattern
    quoted = re.escape(character)
    return re.search(rf"\\{quoted}|\[[^\]]*{quoted}", pattern) is not None


def _written(tag: Any) -> Iterator[str]:
    """The texts that a structural tag may write."""
    waiting = [tag]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += (inner for name, inner in one.items() if name not in _NOT_WRITTEN)
        elif isinstance(one, list):
            waiting += one
        elif isinstance(one, str):
            yield one
