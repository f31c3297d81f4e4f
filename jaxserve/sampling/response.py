"""ResponseParams: the form that the whole response of a chat model must have: its thinking, its calls, its content."""

from __future__ import annotations

from typing import Literal

import msgspec

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.structured import FIELD, StructuredOutputsParams

MAX_TOOLS_BYTES = 524_288  # of UTF-8, of all tools together
MAX_TEMPLATE_BYTES = 262_144
MAX_THINKING_TOKENS = 2**31 - 1

_THINKING = ("none", "maybe", "open")


class ResponseParams(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The form of a response: thinking, if there is any, and then calls of tools, or content, as the model's family writes them.

    All is kept as text, which is cheap to hash, compare and send. Whether it can be compiled is found out later. It is an array
    where it is sent, which tells it from a StructuredOutputsParams.

    Attributes:
        template: JSON of the `response_template` by which the model writes (`ResponseTemplate.spec`).
        thinking: where the response begins. `none`: behind thinking, if the model thinks at all. `maybe`: before thinking, if
            there is any. `open`: inside of it.
        max_thinking_tokens: tokens of thinking after which it is ended as the template says; None for no limit.
        tools: JSON of a list of ``{"name", "parameters", "strict", "path"}``, those that may be called: `parameters` is a
            schema, `strict` whether a schema that cannot be held to is refused, `path` what errors call the schema. Empty:
            calls are no part of the form.
        required: the response is calls, and nothing else after the thinking.
        parallel: there may be several calls.
        content: the form that the content must have; None for any text.
    """

    template: str
    thinking: Literal["none", "maybe", "open"] = "none"
    max_thinking_tokens: int | None = None
    tools: str = ""
    required: bool = False
    parallel: bool = True
    content: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        _require(f"{FIELD}.template", isinstance(self.template, str) and self.template.strip(), "the JSON of a response_template")
        _check_size(f"{FIELD}.template", self.template, MAX_TEMPLATE_BYTES)
        _require(f"{FIELD}.thinking", self.thinking in _THINKING, f"one of {', '.join(_THINKING)}")
        _require("tools", isinstance(self.tools, str), "the JSON of a list, or empty")
        _check_size("tools", self.tools, MAX_TOOLS_BYTES)
        for name in ("required", "parallel"):
            _require(f"{FIELD}.{name}", isinstance(getattr(self, name), bool), "true or false")
        _require("tools", self.tools or not self.required, "given where a call is required")
        form = isinstance(self.content, StructuredOutputsParams | None)
        _require(f"{FIELD}.content", form, "a StructuredOutputsParams or null")
        limit = self.max_thinking_tokens
        counts = limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and 0 <= limit <= MAX_THINKING_TOKENS)
        _require("max_thinking_tokens", counts, f"an integer from 0 to {MAX_THINKING_TOKENS}, or null")

    @property
    def param(self) -> str:
        """What errors about it as a whole name."""
        return "tools" if self.tools else FIELD if self.content is None else self.content.param


def _check_size(name: str, text: str, most: int) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{name} has half of a surrogate pair at character {error.start}", param=name) from error
    _require(name, size <= most, f"at most {most} bytes, got {size}")


def _require(name: str, holds: object, what: str) -> None:
    if not holds:
        raise InvalidRequestError(f"{name} must be {what}", param=name)
