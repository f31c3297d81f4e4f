"""The grammars of an engine: compiled in threads of their own, once for all requests that have the same."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from llguidance import LLMatcher
from msgspec.structs import replace

from jaxserve.errors import InvalidRequestError
from jaxserve.grammar.compile import compile_grammar
from jaxserve.grammar.matching import GrammarConstraint, GrammarMasker
from jaxserve.grammar.response import compile_response
from jaxserve.grammar.source import grammar_source
from jaxserve.grammar.thinking import ThinkingBudget, ThinkingMarks
from jaxserve.grammar.vocabulary import Vocabulary
from jaxserve.sampling.response import ResponseParams
from jaxserve.sampling.structured import StructuredOutputsParams

MAX_KEPT = 512  # compiled grammars

Form = StructuredOutputsParams | ResponseParams


@dataclass(frozen=True, slots=True)
class Compiled:
    """A grammar at its beginning, to be copied, and the marks of thinking that a budget can end."""

    matcher: LLMatcher
    thinking: ThinkingMarks | None = None


class Grammars:
    """Compiles what requests ask for. Used by one thread; nothing but `constraints` waits.

    Attributes:
        masker: makes the masks of what these constrain.

    Args:
        vocab_size: V, of the model.
        vocabulary: reads the model's tokens; called once, when the first grammar is compiled.
    """

    def __init__(self, vocab_size: int, vocabulary: Callable[[], Vocabulary]) -> None:
        self.masker = GrammarMasker(vocab_size)
        self._read = vocabulary
        self._vocabulary: Future[Vocabulary] | None = None
        self._threads = ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2), thread_name_prefix="jaxserve-grammar")
        self._compiled: OrderedDict[Form, Future[Compiled]] = OrderedDict()

    def compile(self, params: Form) -> Future[Compiled]:
        """The grammar, when it is there; the future raises InvalidRequestError for one that cannot be compiled."""
        if self._vocabulary is None:
            self._vocabulary = self._threads.submit(self._read)
        if isinstance(params, ResponseParams):
            params = replace(params, max_thinking_tokens=None)  # which is nothing of the grammar
        future = self._compiled.get(params)
        if future is None:
            future = self._compiled[params] = self._threads.submit(_compile, params, self._vocabulary)
        self._compiled.move_to_end(params)
        while len(self._compiled) > MAX_KEPT:
            self._compiled.popitem(last=False)
        return future

    def constraints(self, params: Form) -> Callable[[], GrammarConstraint]:
        """Makes constraints, one a sequence. Waits for the grammar; raises InvalidRequestError."""
        compiled = self.compile(params).result()
        grammar, marks = compiled.matcher, compiled.thinking
        budget = params.max_thinking_tokens if isinstance(params, ResponseParams) and params.thinking != "none" else None
        if budget is None:
            return lambda: GrammarConstraint(grammar.deep_copy())
        if marks is None:
            raise InvalidRequestError(
                "max_thinking_tokens needs a response template that says how thinking is ended", param="max_thinking_tokens"
            )
        return lambda: ThinkingBudget(grammar.deep_copy(), marks, budget)


def _compile(params: Form, reading: Future[Vocabulary]) -> Compiled:
    vocabulary = reading.result()
    if isinstance(params, ResponseParams):
        return Compiled(*compile_response(params, vocabulary))
    return Compiled(compile_grammar(grammar_source(params, vocabulary.special), vocabulary.tokens, params.param))
