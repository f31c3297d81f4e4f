"""Masks of rows: a hostile grammar fails its own row, by a bound that does not depend on the machine's load."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from jaxserve.errors import InvalidRequestError
from jaxserve.grammar.matching import MAX_SLOW, SLOW_SECONDS, GrammarConstraint, GrammarMasker
from jaxserve.types import MASK_BITS
from tests.support.grammars import allowed, matcher, vocabulary

V = vocabulary().tokens.vocab_size
NESTED_REPEATS = 'start: r{1,1000}\nr: s{1,1000}\ns: "a" | "b"'  # a million ways to read each character


def clock(seconds: float) -> Callable[[], float]:
    """Each reading is this many seconds after the one before."""
    return (looks * seconds for looks in itertools.count()).__next__


def masks(count: int) -> np.ndarray:
    return np.full((count, -(-V // MASK_BITS)), -1, np.int32)


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_masks_of_any_number_of_rows(rows: int) -> None:
    kinds = [matcher(regex="[ab]+"), matcher(json={"type": "integer"}), matcher(choice=["x", "yes"])]
    constraints = [GrammarConstraint(kinds[row % 3].deep_copy()) for row in range(rows)]
    words = masks(rows + 1)
    assert GrammarMasker(V).fill([(rows - row, one) for row, one in enumerate(constraints)], words) == {}
    for row, one in enumerate(constraints):
        bits = np.unpackbits(words[rows - row].view(np.uint8), bitorder="little")
        assert np.flatnonzero(bits).tolist() == allowed(one.matcher)
    assert (words[0] == -1).all()


def test_a_row_that_is_slow_twice_fails_alone() -> None:
    grammar = matcher(regex="[ab]+")
    slow = GrammarConstraint(grammar.deep_copy(), clock(SLOW_SECONDS * 1.1))
    quick = GrammarConstraint(grammar.deep_copy(), clock(SLOW_SECONDS / 4))
    masker = GrammarMasker(V)
    for _ in range(MAX_SLOW - 1):
        assert masker.fill([(0, slow), (1, quick)], masks(2)) == {}
    errors = masker.fill([(0, slow), (1, quick)], masks(2))
    assert list(errors) == [0]
    assert isinstance(errors[0], InvalidRequestError)
    assert errors[0].param == "structured_outputs"
    assert "structured_outputs: the grammar is too complex" in errors[0].message


def test_time_to_follow_a_token_counts_with_the_mask() -> None:
    constraint = GrammarConstraint(matcher(regex="a+").deep_copy(), clock(SLOW_SECONDS * 0.4))
    (token,) = vocabulary().tokens.tokenize_str("a")
    for _ in range(MAX_SLOW):
        assert not constraint.is_slow
        constraint.accept(token)
        constraint.forced()
        GrammarMasker(V).fill([(0, constraint)], masks(1))
    assert constraint.is_slow


def test_an_ambiguous_grammar_reaches_a_named_limit() -> None:
    constraint = GrammarConstraint(matcher(grammar=NESTED_REPEATS).deep_copy(), lambda: 0.0)
    masker, (token,) = GrammarMasker(V), vocabulary().tokens.tokenize_str("a")

    def follow() -> None:
        for _ in range(100):
            for error in masker.fill([(0, constraint)], masks(1)).values():
                raise error
            constraint.accept(token)

    with pytest.raises(InvalidRequestError, match=r"more than \d+ parser items"):
        follow()
