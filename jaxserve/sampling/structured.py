"""StructuredOutputsParams: the form that an output must have. Names follow vLLM's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from json import dumps
from types import MappingProxyType
from typing import Any

from jaxserve.errors import InvalidRequestError

# Bytes of UTF-8 that each may have. Compilers recurse into what they read, on a stack of the size that goes with these.
MAX_BYTES: Mapping[str, int] = MappingProxyType(
    {"json": 524_288, "regex": 65_536, "choice": 262_144, "grammar": 65_536, "structural_tag": 524_288}
)
MAX_CHOICES = 10_000
MAX_WHITESPACE_PATTERN = 256  # bytes

FIELD = "structured_outputs"  # of SamplingParams
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_OF_JSON = frozenset({"json", "json_object", "structural_tag"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """The form of the output: exactly one of `json`, `regex`, `choice`, `grammar`, `json_object` and `structural_tag`.

    All is kept as text, which is cheap to hash, compare and send. Whether it can be compiled is found out later.

    Attributes:
        json: a JSON schema, as a mapping or its text; kept as text.
        regex: the whole output matches it (syntax of Rust's regex crate; no look-around, no back references).
        choice: the output is one of these strings.
        grammar: a grammar in Lark's syntax, or in that of llama.cpp's GBNF (``root ::= ...``).
        json_object: the output is any JSON object.
        structural_tag: text in which tags begin parts of a given form, as a mapping or its JSON; kept as text.
        disable_any_whitespace: JSON without white space between its parts.
        disable_additional_properties: objects of the schema have no properties beside those it names, unless it says otherwise.
        whitespace_pattern: regex of the white space between the parts of JSON.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | Mapping[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        for name in ("json_object", "disable_any_whitespace", "disable_additional_properties"):
            if getattr(self, name) is None:  # vLLM's default
                object.__setattr__(self, name, False)
            _require(name, isinstance(getattr(self, name), bool), "true or false")
        for name in ("json", "structural_tag"):
            value = getattr(self, name)
            if isinstance(value, Mapping):
                object.__setattr__(self, name, _text_of(name, value))
            else:
                _require(name, value is None or isinstance(value, str), "an object, or its JSON text")
        for name in ("regex", "grammar", "whitespace_pattern"):
            _require(name, isinstance(getattr(self, name), str | None), "a string")
        if self.choice is not None:
            _require("choice", isinstance(self.choice, Iterable) and not isinstance(self.choice, str), "a list of strings")
            object.__setattr__(self, "choice", tuple(self.choice))
            _require("choice", all(isinstance(one, str) for one in self.choice), "a list of strings")
        self._check_kind()
        self._check_sizes()

    def _check_kind(self) -> None:
        given = [name for name in KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            found = f", got {' and '.join(given)}" if given else ""
            raise InvalidRequestError(f"{FIELD} must have exactly one of {', '.join(KINDS)}{found}", param=FIELD)
        for name in ("disable_any_whitespace", "whitespace_pattern"):
            goes = given[0] in _OF_JSON or not getattr(self, name)
            _require(name, goes, f"left out with {given[0]}: it is about JSON")
        both = self.disable_any_whitespace and self.whitespace_pattern is not None
        _require("whitespace_pattern", not both, "left out with disable_any_whitespace")

    def _check_sizes(self) -> None:
        if self.choice is not None:
            _require("choice", self.choice, "a list that is not empty")
            _require("choice", len(self.choice) <= MAX_CHOICES, f"at most {MAX_CHOICES} strings, got {len(self.choice)}")
            _check_text("choice", "".join(self.choice), MAX_BYTES["choice"])
        if self.whitespace_pattern is not None:
            _check_text("whitespace_pattern", self.whitespace_pattern, MAX_WHITESPACE_PATTERN)
        for name in ("json", "regex", "grammar", "structural_tag"):
            text = getattr(self, name)
            if text is not None:
                _require(name, text.strip() or name == "regex", "a text that is not empty")
                _check_text(name, text, MAX_BYTES[name])

    @property
    def kind(self) -> str:
        """Which of the six it is."""
        return next(name for name in KINDS if getattr(self, name) not in (None, False))

    @property
    def param(self) -> str:
        """What errors about it name."""
        return f"{FIELD}.{self.kind}"


def _text_of(name: str, value: Mapping[str, Any]) -> str:
    try:
        return dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{FIELD}.{name} must be JSON: {error}", param=f"{FIELD}.{name}") from error


def _check_text(name: str, text: str, most: int) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        param = f"{FIELD}.{name}"
        raise InvalidRequestError(f"{param} has half of a surrogate pair at character {error.start}", param=param) from error
    _require(name, size <= most, f"at most {most} bytes, got {size}")


def _require(name: str, holds: object, what: str) -> None:
    if not holds:
        raise InvalidRequestError(f"{FIELD}.{name} must be {what}", param=f"{FIELD}.{name}")
