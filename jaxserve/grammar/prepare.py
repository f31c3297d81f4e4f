"""Request grammars in two steps: untrusted work that a worker process does, and compiling what passed it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from llguidance import LLMatcher

from jaxserve.grammar.compile import compile_grammar
from jaxserve.grammar.response import response_source
from jaxserve.grammar.source import grammar_source
from jaxserve.grammar.thinking import ThinkingMarks, ThinkingText
from jaxserve.grammar.vocabulary import Vocabulary
from jaxserve.sampling.response import ResponseParams
from jaxserve.sampling.structured import StructuredOutputsParams

Form = StructuredOutputsParams | ResponseParams


class Prepared(msgspec.Struct, frozen=True, array_like=True):
    """A grammar that has been compiled once, as text.

    Attributes:
        source: the grammar as llguidance reads it.
        thinking: how a budget ends the thinking; None if it cannot.
    """

    source: str
    thinking: ThinkingText | None = None


@dataclass(frozen=True, slots=True)
class Compiled:
    """A matcher at the beginning of its grammar, to be copied, and how a budget ends the thinking; None if it cannot."""

    matcher: LLMatcher
    thinking: ThinkingMarks | None = None


def prepare(form: Form, vocabulary: Vocabulary) -> tuple[Prepared, LLMatcher]:
    """Analyze a form, write its grammar, and compile it on trial. Raises InvalidRequestError naming the field."""
    if isinstance(form, ResponseParams):
        source, thinking, matcher = response_source(form, vocabulary)
        return Prepared(source, thinking), matcher
    source = grammar_source(form, vocabulary.special)
    return Prepared(source), compile_grammar(source, vocabulary.tokens, form.param)


def compile_prepared(prepared: Prepared, param: str, vocabulary: Vocabulary) -> Compiled:
    """Compile a grammar that was prepared with an equal vocabulary."""
    matcher = compile_grammar(prepared.source, vocabulary.tokens, param)
    return Compiled(matcher, None if prepared.thinking is None else ThinkingMarks(prepared.thinking, vocabulary))
