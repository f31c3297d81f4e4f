"""Suffix decoding against a scan of every text, and what it forgets."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.speculation.suffix import LEVELS, MAX_TENANTS, PLACES, Bounds, PlaceIndex, SuffixDrafter, TenantTexts

TEXTS = st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=20), max_size=4)
BOUNDS = Bounds(max_depth=24, spec_factor=1.0, min_prob=0.1)


def places(texts, tokens):
    """(text, place) behind every occurrence of the last pair, latest first, of the last PLACES."""
    found = [(text, place) for text in texts for place in range(2, len(text)) if text[place - 2 : place] == tokens[-2:]]
    return found[::-1][:PLACES]


def length(text, place, tokens, depth):
    return max(
        size for size in range(min(depth, place, len(tokens)) + 1) if text[place - size : place] == tokens[len(tokens) - size :]
    )


def scanned(own, others, tokens, most, bounds):
    """The best of the guesses by each length of agreement; by plain loops."""
    found = [(text, place, length(text, place, tokens, bounds.max_depth)) for text, place in places([own], tokens)]
    found += [(text, place, length(text, place, tokens, bounds.max_depth)) for text, place in places(others, tokens)]
    best: tuple[float, list[int]] = (0.0, [])
    for size in sorted({one[2] for one in found}, reverse=True)[:LEVELS]:
        going = [text[place:] for text, place, its in found if its >= size]
        guess: list[int] = []
        likely, score = 1.0, 0.0
        for step in range(min(most, int(size * bounds.spec_factor))):
            going = [text for text in going if len(text) > step]
            counts = Counter(text[step] for text in going)
            if not counts:
                break
            token = max(counts, key=lambda one: counts[one])
            likely *= counts[token] / len(going)
            if likely < bounds.min_prob:
                break
            guess.append(token)
            score += likely
            going = [text for text in going if text[step] == token]
        if score > best[0]:
            best = score, guess
    return tuple(best[1])


@settings(deadline=None)
@given(
    TEXTS, st.lists(st.integers(0, 2), min_size=2, max_size=30), st.integers(1, 6), st.sampled_from([0.5, 1.0, 3.0]), st.data()
)
def test_is_what_a_scan_finds(earlier, tokens, most, factor, data):
    bounds = Bounds(5, factor, 0.3)
    drafter = SuffixDrafter(bounds, 100, 1000)
    for text in earlier:
        drafter.begin("a", 0).end(text)
    guesser = drafter.begin("a", 0)
    end = 1
    while end < len(tokens):
        end = data.draw(st.integers(end + 1, len(tokens)))
        assert guesser.propose(tokens[:end], most).tokens == scanned(tokens[:end], earlier, tokens[:end], most, bounds)


def test_tenants_never_meet():
    drafter = SuffixDrafter(BOUNDS, 100, 1000)
    drafter.begin("a", 0).end([1, 2, 3, 4, 5, 6])
    assert drafter.begin("b", 0).propose([1, 2, 3], 4).tokens == ()
    assert drafter.begin("a", 0).propose([1, 2, 3], 4).tokens == (4, 5, 6)


def test_prompts_are_not_answers():
    """Of a prompt no more is kept than a passage is long."""
    drafter = SuffixDrafter(Bounds(2, 1.0, 0.1), 100, 1000)
    drafter.begin("a", 5).end([1, 2, 3, 4, 5, 6, 7])
    assert drafter.begin("a", 0).propose([1, 2], 4).tokens == ()
    assert drafter.begin("a", 0).propose([4, 5], 4).tokens == (6, 7)


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), max_size=12), st.integers(0, 3), st.integers(1, 20))
def test_no_more_is_kept_than_is_allowed(texts, most_texts, most_tokens):
    kept = TenantTexts(most_texts, most_tokens)
    for number, text in enumerate(texts, 1):
        kept.learn(text)
        left = [one for one in texts[:number] if len(one) <= most_tokens]
        assert kept.index.num_places <= min(sum(map(len, left)), most_tokens)
    if not most_texts:
        assert kept.index.num_places == 0


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), max_size=8))
def test_what_is_dropped_leaves_nothing(texts):
    index = PlaceIndex()
    numbers = [index.add(text) for text in texts]
    for number, text in zip(numbers, texts, strict=True):
        assert index.extend(number, text, len(text))
    for number in numbers:
        index.drop(number)
    assert index.num_places == 0


def test_all_tenants_share_what_is_kept():
    """Who came last keeps what it has."""
    drafter = SuffixDrafter(BOUNDS, 10, 10)
    for tenant in ("old", "new"):
        drafter.begin(tenant, 0).end([1, 2, 3, 4, 5, 6])
    assert drafter.begin("new", 0).propose([1, 2], 1).tokens == (3,)
    assert drafter.begin("old", 0).propose([1, 2], 1).tokens == ()


def test_tenants_are_forgotten_in_the_end():
    drafter = SuffixDrafter(BOUNDS, 10, 100)
    drafter.begin("first", 0).end([1, 2, 3])
    for number in range(MAX_TENANTS):
        drafter.begin(str(number), 0)
    assert drafter.begin("first", 0).propose([1, 2], 1).tokens == ()


@pytest.mark.parametrize(
    ("most", "factor", "expected"), [(8, 1.0, (4, 5, 6)), (2, 1.0, (4, 5)), (8, 0.5, (4,)), (8, 2.0, (4, 5, 6, 7, 8))]
)
def test_guesses_are_no_longer_than_what_agrees(most, factor, expected):
    drafter = SuffixDrafter(Bounds(24, factor, 0.1), 10, 100)
    drafter.begin("", 0).end([1, 2, 3, 4, 5, 6, 7, 8])
    assert drafter.begin("", 0).propose([9, 1, 2, 3], most).tokens == expected
