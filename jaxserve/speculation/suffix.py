"""Suffix decoding: what followed the longest passages that this text, or earlier answers to the same tenant, end as it does.

A text's suffixes are found by an index of where each pair of tokens came: the latest places are looked at, and how far back each
agrees with the text, at most `max_depth` tokens. For every length of agreement the places that have it vote, token after token,
for what comes next; the guess with the most expected right tokens is taken. Its length is bounded by the length of the agreement
times `spec_factor`, and by the likelihood `min_prob` below which a token is not proposed.
(Oliaro et al., SuffixDecoding, 2024; the bounds are those of vLLM's `suffix`. That keeps a trie, a node a suffix and token;
an index of places takes one entry a token, and forgets a text by dropping its tokens.)
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

from jaxserve.speculation.drafter import LONG_MATCH, NOTHING, Guess
from jaxserve.speculation.ngram import AT_ONCE

PLACES = 8  # of a pair of tokens that are remembered, the latest
LEVELS = 4  # lengths of agreement that are voted on, the longest
MAX_TENANTS = 256  # whose answers are kept


class Match(NamedTuple):
    """A place behind which a text goes on, and how many tokens before it agree."""

    text: Sequence[int]
    place: int
    length: int


class PlaceIndex:
    """The latest places of every pair of tokens in some texts. Pairs, and places in numbered texts, are packed into numbers."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[int, ...]] = {}
        self._texts: dict[int, Sequence[int]] = {}
        self._known: dict[int, int] = {}
        self._number = count()

    def add(self, tokens: Sequence[int]) -> int:
        """A text, of which `extend` takes in tokens; returns its number."""
        number = next(self._number)
        self._texts[number] = tokens
        self._known[number] = 2
        return number

    def extend(self, number: int, tokens: Sequence[int], end: int) -> bool:
        """Take in the pairs before `end` that something follows, AT_ONCE at most; whether that is all. `tokens` grew."""
        self._texts[number] = tokens
        first = self._known[number]
        last = min(end, first + AT_ONCE)
        for place in range(first, last):
            pair = _packed(tokens[place - 2], tokens[place - 1])
            self._places[pair] = (*self._places.get(pair, ())[1 - PLACES :], _packed(number, place))
        self._known[number] = max(first, last)
        return last >= end

    def drop(self, number: int) -> None:
        """Forget a text."""
        tokens = self._texts.pop(number)
        for place in range(2, self._known.pop(number)):
            pair = _packed(tokens[place - 2], tokens[place - 1])
            left = tuple(one for one in self._places.pop(pair, ()) if one >> 32 in self._texts)
            if left:
                self._places[pair] = left

    def matches(self, tokens: Sequence[int], max_depth: int) -> Iterator[Match]:
        """Places behind what the text ends with, latest first; the text itself may be among those looked at."""
        for packed in reversed(self._places.get(_packed(tokens[-2], tokens[-1]), ())):
            text, place = self._texts[packed >> 32], packed & 0xFFFFFFFF
            yield Match(text, place, agreement(text, place, tokens, max_depth))

    @property
    def num_places(self) -> int:
        return sum(map(len, self._places.values()))


def _packed(first: int, second: int) -> int:
    return first << 32 | second


def agreement(text: Sequence[int], place: int, tokens: Sequence[int], most: int) -> int:
    """How many tokens before `place` of a text, `most` at most, are those that `tokens` ends with."""
    most = min(most, place, len(tokens))
    length = 0
    while length < most and text[place - 1 - length] == tokens[-1 - length]:
        length += 1
    return length


class TenantTexts:
    """Answers of one tenant, the oldest of which go first.

    Attributes:
        num_tokens: of what is kept.

    Args:
        most_texts, most_tokens: that are kept.
    """

    def __init__(self, most_texts: int, most_tokens: int) -> None:
        self.index = PlaceIndex()
        self._kept: deque[tuple[int, int]] = deque()
        self._most_texts = most_texts
        self._most_tokens = most_tokens
        self.num_tokens = 0

    def learn(self, tokens: Sequence[int]) -> None:
        if not self._most_texts or len(tokens) > self._most_tokens:
            return
        number = self.index.add(tokens)
        while not self.index.extend(number, tokens, len(tokens)):
            pass
        self._kept.append((number, len(tokens)))
        self.num_tokens += len(tokens)
        while len(self._kept) > self._most_texts or self.num_tokens > self._most_tokens:
            oldest, size = self._kept.popleft()
            self.index.drop(oldest)
            self.num_tokens -= size


class Bounds(NamedTuple):
    """Of guesses: see the module."""

    max_depth: int
    spec_factor: float
    min_prob: float


class SuffixGuesser:
    """Guesses by one text and what its tenant was answered before."""

    def __init__(self, bounds: Bounds, tenant: TenantTexts, num_prompt: int) -> None:
        self._bounds = bounds
        self._tenant = tenant
        self._num_prompt = num_prompt
        self._own = PlaceIndex()
        self._number = self._own.add(())

    def propose(self, tokens: Sequence[int], most: int) -> Guess:
        if len(tokens) < 2 or not self._own.extend(self._number, tokens, len(tokens)):
            return NOTHING
        depth = self._bounds.max_depth
        found = [*self._own.matches(tokens, depth), *self._tenant.index.matches(tokens, depth)]
        return best_guess(found, most, self._bounds)

    def end(self, tokens: Sequence[int]) -> None:
        """The answer is kept, with as much of the prompt as passages are long."""
        self._tenant.learn(tokens[max(self._num_prompt - self._bounds.max_depth, 0) :])


class SuffixDrafter:
    """A guesser for every text, which knows that text and earlier answers to its tenant.

    Args:
        most_texts: that are kept of a tenant.
        most_tokens: that are kept of all tenants together; those go first whose latest request is the oldest.
    """

    def __init__(self, bounds: Bounds, most_texts: int, most_tokens: int) -> None:
        self._bounds = bounds
        self._most_texts = most_texts
        self._most_tokens = most_tokens
        self._tenants: OrderedDict[str, TenantTexts] = OrderedDict()

    def begin(self, tenant: str, num_prompt: int) -> SuffixGuesser:
        texts = self._tenants.get(tenant)
        if texts is None:
            texts = self._tenants[tenant] = TenantTexts(self._most_texts, self._most_tokens)
        self._tenants.move_to_end(tenant)
        while len(self._tenants) > 1 and (len(self._tenants) > MAX_TENANTS or self._num_tokens() > self._most_tokens):
            self._tenants.popitem(last=False)
        return SuffixGuesser(self._bounds, texts, num_prompt)

    def _num_tokens(self) -> int:
        return sum(texts.num_tokens for texts in self._tenants.values())


def best_guess(found: Sequence[Match], most: int, bounds: Bounds) -> Guess:
    """What the matches vote for, by the length of agreement that promises most."""
    best, best_score = NOTHING, 0.0
    for length in sorted({match.length for match in found}, reverse=True)[:LEVELS]:
        bound = min(most, int(length * bounds.spec_factor))
        tokens, score = vote([match for match in found if match.length >= length], bound, bounds.min_prob)
        if score > best_score:
            best, best_score = Guess(tokens, length >= LONG_MATCH), score
    return best


def vote(matches: Sequence[Match], most: int, min_prob: float) -> tuple[tuple[int, ...], float]:
    """Tokens that most of the matches go on with, one after another, and how many of them are expected to be right."""
    tokens: list[int] = []
    likely, score, places = 1.0, 0.0, [(match.text, match.place) for match in matches]
    while len(tokens) < most:
        following = [(text, place, text[place]) for text, place in places if place < len(text)]
        if not following:
            break
        token, votes = Counter(token for _, _, token in following).most_common(1)[0]
        likely *= votes / len(following)
        if likely < min_prob:
            break
        tokens.append(token)
        score += likely
        places = [(text, place + 1) for text, place, its in following if its == token]
    return tuple(tokens), score
