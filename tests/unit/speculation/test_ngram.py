"""Prompt lookup against a scan of the whole text."""

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.speculation.drafter import NOTHING
from jaxserve.speculation.ngram import AT_ONCE, NgramDrafter, continued


def scanned(tokens, least, most, count):
    """The longest n-gram at the end that came before, continued from where it came last."""
    for size in range(min(most, len(tokens) - 1), least - 1, -1):
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == tokens[-size:]:
                text = list(tokens)
                for place in range(count):
                    text.append(text[end + place])
                return tuple(text[len(tokens) :])
    return ()


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 3), st.integers(0, 3), st.integers(1, 6), st.data())
def test_is_what_a_scan_finds(tokens, least, more, count, data):
    """However the text grows between calls."""
    guesser = NgramDrafter(least, least + more).begin("", 0)
    end = 0
    while end < len(tokens):
        end = data.draw(st.integers(end + 1, len(tokens)))
        assert guesser.propose(tokens[:end], count).tokens == scanned(tokens[:end], least, least + more, count)


def test_a_period_goes_on():
    assert continued([9, 1, 2, 3], 1, 7) == (1, 2, 3, 1, 2, 3, 1)
    assert NgramDrafter(3, 3).begin("", 0).propose([1, 2, 1, 2, 1, 2], 5).tokens == (1, 2, 1, 2, 1)


def test_long_matches_are_told():
    text = list(range(20))
    guesser = NgramDrafter(3, 5).begin("", 0)
    assert guesser.propose([*text, 5, 6, 7], 2) == ((8, 9), False)
    assert NgramDrafter(3, 5).begin("", 0).propose([*text, *text[2:12]], 2) == ((12, 13), True)


def test_a_long_prompt_is_indexed_by_and_by():
    text = [*range(2 * AT_ONCE), 5, 6, 7]
    guesser = NgramDrafter(3, 3).begin("", 0)
    assert [guesser.propose(text, 1).tokens for _ in range(4)] == [(), (), (8,), (8,)]
    assert guesser.propose([1], 3) == NOTHING
