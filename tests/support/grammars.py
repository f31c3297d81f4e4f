"""Matchers over the bundled model's tokens: what they accept, and walks through what they allow."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from llguidance import LLMatcher

from jaxserve.engine.preparation import model_directory
from jaxserve.grammar.compile import compile_grammar
from jaxserve.grammar.source import grammar_source
from jaxserve.grammar.vocabulary import Vocabulary, load_vocabulary
from jaxserve.sampling.structured import StructuredOutputsParams

END = 2  # of a turn: what ends a sequence of the bundled model
_VOCAB_SIZE = 1024
_ENDINGS = tuple('"}]0e,:{ [')  # what brings most JSON to its end, best first


@cache
def vocabulary() -> Vocabulary:
    return load_vocabulary(model_directory("pico"), vocab_size=_VOCAB_SIZE, eos_token_ids=[END])


def matcher(**kind: Any) -> LLMatcher:
    params = StructuredOutputsParams(**kind)
    return compile_grammar(grammar_source(params, vocabulary().special), vocabulary().tokens, params.param)


def accepts(grammar: LLMatcher, text: str, *, special: bool = False) -> bool:
    """Whether it is a whole output; with `special` the names of special tokens stand for them."""
    one = grammar.deep_copy()
    tokens = vocabulary().tokens.tokenize_str(text, parse_special=special)
    return one.try_consume_tokens(tokens) == len(tokens) and one.is_accepting()


def allowed(grammar: LLMatcher) -> list[int]:
    mask = grammar.compute_bitmask()
    return [token for token in range(_VOCAB_SIZE) if mask[token // 8] >> token % 8 & 1]


def walk(grammar: LLMatcher, seed: int, tokens: int) -> str | None:
    """A random output: any allowed tokens, after so many those that lead to an end; None if twice as many more led to none."""
    choose, one, taken = random.Random(seed), grammar.deep_copy(), list[int]()
    endings = [vocabulary().tokens.tokenize_str(text)[0] for text in _ENDINGS]
    while len(taken) < 3 * tokens:
        choices = allowed(one)
        assert not one.is_error(), one.get_error()
        if END in choices and (len(taken) >= tokens or len(choices) == 1 or choose.random() < 0.2):
            return vocabulary().tokens.decode_str(taken)
        choices = [token for token in choices if token != END]
        nearest = next((token for token in endings if token in choices), None) if len(taken) >= tokens else None
        taken.append(choose.choice(choices) if nearest is None else nearest)
        assert one.consume_token(taken[-1]), one.get_error()
    return None
