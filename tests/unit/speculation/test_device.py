"""How many tokens a draft model guesses: where that pays, by what was accepted and by what steps took."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.speculation.device import LONGEST_REST, PATIENCE, REST, DeviceGuesses

DRAFTS = 4


def guesses(seconds_of=lambda tokens: 1.0, rows=1, **limits):
    """Of an engine whose steps take so long by their tokens, all measured."""
    made = DeviceGuesses(DRAFTS, max_rows=64, max_tokens=512)
    measure(made, seconds_of, rows)
    return made


def measure(made, seconds_of, rows=1):
    for _ in range(5):
        for count in range(DRAFTS + 1):
            made.observe(rows, rows * (1 + count), seconds_of(rows * (1 + count)))


def test_a_plain_step_is_measured_before_any_is_guessed():
    made = DeviceGuesses(DRAFTS, max_rows=8, max_tokens=64)
    assert made.guesses(["a"], 1) == 0
    made.observe(1, 1, 0.01)
    assert made.guesses(["a"], 1) == DRAFTS


def test_more_are_guessed_where_more_are_right():
    made = guesses(lambda tokens: 1.0 + 0.3 * (tokens - 1))
    for _ in range(20):
        made.verified("good", DRAFTS, DRAFTS)
        made.verified("middling", DRAFTS, 1)
        made.verified("bad", DRAFTS, 0)
    assert made.guesses(["good"], 1) == DRAFTS
    assert made.guesses(["middling"], 1) == 1
    assert made.guesses(["bad"], 1) == 0


def test_none_are_guessed_where_steps_cost_what_their_tokens_cost():
    made = guesses(float, rows=32)
    assert made.guesses([str(number) for number in range(32)], 32) == 0


def test_a_draft_that_does_not_pay_rests_longer_and_longer_and_is_tried_again():
    made = guesses(float, rows=2)
    names, rests = ["a", "b"], []
    for _ in range(5):
        said = [made.guesses(names, 2) for _ in range(PATIENCE)]
        assert said == [0] * (PATIENCE - 1) + [None]
        rest = 0
        while made._rests_for > 1:
            assert made.guesses(names, 2) is None
            rest += 1
        rests.append(rest + 1)
    assert rests == [REST << number for number in range(5)]
    assert rests[-1] <= LONGEST_REST


def test_one_sequence_alone_ends_a_rest():
    made = guesses(float, rows=2)
    while made.guesses(["a", "b"], 2) is not None:
        pass
    measure(made, lambda tokens: 1.0)
    assert made.guesses(["c"], 1) == DRAFTS


def test_sequences_that_take_none_do_not_make_it_rest():
    made = guesses()
    assert {made.guesses([], 4) for _ in range(10 * PATIENCE)} == {0}


@given(
    st.lists(
        st.tuples(st.integers(1, 64), st.integers(0, DRAFTS), st.sampled_from([math.nan, math.inf, -1.0, 0.0, 1e-9, 1e9, 0.01]))
    )
)
def test_whatever_clocks_say_there_are_as_many_as_may_be(steps):
    made = DeviceGuesses(DRAFTS, max_rows=64, max_tokens=512)
    for rows, count, seconds in steps:
        made.observe(rows, rows * (1 + count), seconds)
        said = made.guesses([str(number) for number in range(rows)], rows)
        assert said is None or 0 <= said <= DRAFTS
    for _ in range(2 * LONGEST_REST):  # and it is never given up for good
        made.observe(1, 1, 1.0)
        if made.guesses(["new"], 1):
            return
    pytest.fail("the draft model never guesses again")


def test_what_ended_is_forgotten():
    made = guesses()
    made.verified("a", 3, 2)
    made.ended("a")
    made.ended("never was")
    assert not made._acceptance
    assert (made.counts.drafts, made.counts.draft_tokens, made.counts.accepted_tokens) == (1, 3, 2)
    assert made.counts.accepted_at == (1, 1, 0, 0)
