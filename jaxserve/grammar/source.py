"""From StructuredOutputsParams to the text that llguidance compiles."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from llguidance.gbnf_to_lark import gbnf_to_lark

from jaxserve.chat_parsing.lark import literal
from jaxserve.errors import InvalidRequestError
from jaxserve.grammar.forcing import NO_FORCING, may_force
from jaxserve.grammar.schema import prepared
from jaxserve.grammar.shortest import LONGEST, least_repeated
from jaxserve.grammar.structural_tag import StructuralTag, regex_literal, with_options
from jaxserve.sampling.structured import StructuredOutputsParams
from jaxserve.untrusted import check_json, refused

# One space, or a new line and its indentation: what every writer of JSON needs, and no room to go on with for ever.
WHITESPACE = r"( |\r?\n[ \t]{0,64})"

_OF_SCHEMA = "start: %json "
_NO_SPECIAL: Mapping[str, int] = MappingProxyType({})
_IS_GBNF = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
_MAX_RULES = 1000  # of GBNF; converting takes their square
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)


def grammar_source(params: StructuredOutputsParams, special_tokens: Mapping[str, int] = _NO_SPECIAL) -> str:
    """The grammar as llguidance reads it.

    Args:
        special_tokens: ids of tokens that no text has, by name: what structural tags write as tokens, not as text.

    Raises InvalidRequestError, naming the field and the place in it, for what is no such thing or is not supported. What it
    returns may still be refused when it is compiled.
    """
    with refused(params.param):
        source = _lark(params, special_tokens)
    if not may_force(params, source, special_tokens):
        return source + NO_FORCING
    # What Lark embeds takes longer to compile.
    return listed_grammars(_member(source)) if _is_schema(source) else source


def named_grammar(params: StructuredOutputsParams, name: str, special_tokens: Mapping[str, int]) -> tuple[str, bool]:
    """One of `listed_grammars`, which others call by its name, and whether what it forces need not be chosen.

    Raises InvalidRequestError as `grammar_source` does.
    """
    with refused(params.param):
        source = _lark(params, special_tokens)
    return _member(source, f'"name": {json.dumps(name)}, '), may_force(params, source, special_tokens)


def listed_grammars(*members: str) -> str:
    """Several grammars as llguidance reads them: the first one calls the others."""
    return f'{{"grammars": [{", ".join(members)}]}}'


def lark_member(source: str) -> str:
    """One of `listed_grammars`, written in Lark."""
    return _member(source)


def _member(source: str, head: str = "") -> str:
    if _is_schema(source):
        return f'{{{head}"json_schema": {source.removeprefix(_OF_SCHEMA)}}}'
    return f'{{{head}"lark_grammar": {json.dumps(source, ensure_ascii=False)}}}'


def _is_schema(source: str) -> bool:
    """Whether a grammar is a JSON schema and nothing else: a structural tag that begins with one has more lines."""
    return source.startswith(_OF_SCHEMA) and "\n" not in source


def _lark(params: StructuredOutputsParams, special_tokens: Mapping[str, int]) -> str:
    options = json_options(params)
    closed = params.disable_additional_properties
    if params.json_object:
        return _OF_SCHEMA + with_options({"type": "object"}, options)
    if isinstance(params.json, str):
        schema = prepared(loaded(params.json, params.param), params.param, closed=closed)
        return _OF_SCHEMA + with_options(schema, options)
    if params.regex is not None:
        if least_repeated(params.regex) > LONGEST:
            what = f"{params.param} cannot be satisfied: no text has less than {LONGEST} characters"
            raise InvalidRequestError(what, param=params.param)
        return f"start: {regex_literal(params.regex)}"
    if params.choice is not None:
        return f"start: CHOICE\nCHOICE: {' | '.join(map(literal, params.choice))}"
    if params.grammar is not None:
        return lark_of(params.grammar, params.param)
    assert isinstance(params.structural_tag, str)
    tag = loaded(params.structural_tag, params.param)
    return StructuralTag(params.param, options, special_tokens, closed=closed).grammar(tag)


def json_options(params: StructuredOutputsParams | None = None) -> dict[str, Any]:
    """Options for JSON, as llguidance names them. Escapes by code: see `json_with_options`."""
    space: dict[str, Any] = {"whitespace_pattern": WHITESPACE}
    if params is not None and params.disable_any_whitespace:
        space = {"whitespace_flexible": False}
    elif params is not None and params.whitespace_pattern is not None:
        space = {"whitespace_pattern": params.whitespace_pattern}
    return {**space, "item_separator": ",", "key_separator": ":", "json_allowed_escapes": 'nrbtf\\"'}


def loaded(text: str, param: str) -> Any:
    """The value of a JSON text. Raises InvalidRequestError."""
    try:
        value = json.loads(text, parse_constant=_no_number)
        check_json(value, text, param, any_size=True)
        return value
    except InvalidRequestError:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{param} must be JSON: {error}", param=param) from error


def lark_of(grammar: str, param: str) -> str:
    """A grammar in llguidance's kind of Lark, from that or from GBNF. Raises InvalidRequestError."""
    if not _IS_GBNF.search(grammar):
        return grammar
    if grammar.count("::=") > _MAX_RULES:
        raise InvalidRequestError(f"{param} must be at most {_MAX_RULES} rules of GBNF", param=param)
    try:
        return gbnf_to_lark(_ESCAPE.sub(_character, grammar))
    except Exception as error:  # the converter raises plain Exception, and IndexError and RecursionError at odd ends
        raise InvalidRequestError(f"{param} is not a GBNF grammar that can be read: {error}", param=param) from error


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _character(escape: re.Match[str]) -> str:
    """A character for an escape that names it, which the converter spoils; others, and those of ASCII, as it reads them."""
    code = escape[1] or escape[2]
    if code is None:
        return escape[0]
    number = int(code, 16)
    return f"\\x{number:02x}" if number < 0x80 or 0xD800 <= number < 0xE000 or number > 0x10FFFF else chr(number)
