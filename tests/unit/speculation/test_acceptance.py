"""What is learned of guesses, from the text that came."""

import pytest

from jaxserve.speculation.acceptance import MAX_SKIPPED, POSITIONS, PRIOR, Acceptance, Follower
from jaxserve.speculation.drafter import Guess


class Scripted:
    """Guesses by length of the text, and notes when it is asked."""

    def __init__(self, guesses):
        self.guesses = guesses
        self.asked = []
        self.learned = None

    def propose(self, tokens, most):
        self.asked.append(len(tokens))
        return Guess(tuple(self.guesses(tokens)[:most]))

    def end(self, tokens):
        self.learned = list(tokens)


def test_chances_multiply_along_a_guess():
    assert Acceptance().all_right(3) == pytest.approx([PRIOR, PRIOR**2, PRIOR**3])


def test_what_came_is_learned_by_position():
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.observe(2, 3)
    first, second, third = acceptance.all_right(3)
    assert first > 0.99
    assert second > 0.99
    assert third < 0.01
    acceptance.observe(0, 3)
    assert 0.7 < acceptance.all_right(1)[0] < first, "what comes behind a wrong token tells nothing of later ones"


def test_later_positions_are_like_the_last():
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.observe(POSITIONS + 4, POSITIONS + 4)
    assert acceptance.all_right(2 * POSITIONS)[-1] > 0.9


def test_guesses_that_nobody_verifies_are_judged():
    follower = Follower(Scripted(lambda tokens: [7, 7, 7]))
    text = [1, 2]
    for _ in range(40):
        follower.watch(text, 3)
        text.append(7)
    assert follower.chances(3)[2] > 0.9
    wrong = Follower(Scripted(lambda tokens: [8]))
    for end in range(2, len(text)):
        wrong.watch(text[:end], 3)
    assert wrong.look([*text, 1] * 3, 1).tokens == (8,)
    assert wrong.chances(1)[0] < 0.3


def test_a_guess_that_may_still_be_right_is_kept():
    scripted = Scripted(lambda tokens: [7, 7, 7])
    follower = Follower(scripted)
    for text in ([1], [1, 7], [1, 7, 7], [1, 7, 7, 7]):
        follower.watch(text, 3)
    assert scripted.asked == [1, 4]


def test_looks_become_rare_where_nothing_is_found_and_frequent_where_something_is():
    scripted = Scripted(lambda tokens: [] if len(tokens) < 100 else [5])
    follower = Follower(scripted)
    for end in range(1, 160):
        follower.watch([5] * end, 3)
    early, late = ([one for one in scripted.asked if (one < 100) is which] for which in (True, False))
    assert len(early) < 15
    assert late[0] <= 100 + MAX_SKIPPED
    assert len(late) > 40


def test_an_ended_text_is_learned():
    scripted = Scripted(lambda tokens: [])
    Follower(scripted).end([1, 2])
    assert scripted.learned == [1, 2]
