"""The automaton finds what a backtracking matcher finds, however the text is cut; and it refuses what it cannot match."""

import pickle

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.chat_parsing.automaton import Pattern
from jaxserve.chat_parsing.search import Search, TokenMatcher, find_all
from jaxserve.chat_parsing.stream import Meter, TextStream

SOURCES = [
    "ab", "a|ab", "ab|a", "a*b", r"\s*<a>\s*", r"(?P<x>a+)(?P<y>b*?)b", r"(?:a|b){2,3}c?", r"^\s*(?=a\s*b)", r"(?=a)", r"a.*?b",
    r"(?:^|(?<=ab))\s*(?=b)", r"<(?P<x>[^>\s]+)\s*>", r"</a>|(?=<a)", r"(?:a(?P<x>b)|b(?P<x>a))\s*(?=<)", "a$",
    r"[^<]*<a", "(?:a?)*b",
]  # fmt: skip


def stream(*pieces: str) -> TextStream:
    made = TextStream(Meter())
    for piece in pieces:
        made.push(piece)
    return made


@settings(max_examples=120, deadline=None)
@given(
    source=st.sampled_from(SOURCES),
    pieces=st.lists(st.text(alphabet="ab <>/\nc", max_size=6), max_size=6),
    at=st.integers(0, 4),
)
def test_a_search_finds_what_a_backtracking_matcher_finds(source: str, pieces: list[str], at: int) -> None:
    text = "".join(pieces)
    at = min(at, len(text))
    arriving = stream()
    pattern = Pattern(source)
    arriving.push(text[:at])
    search = Search(pattern, arriving, at)
    rest = [piece[max(0, at - len("".join(pieces[:n]))) :] for n, piece in enumerate(pieces)]
    for piece in rest:
        search.advance()
        arriving.push(piece)
    search.advance(final=True)
    expected = regex.compile(source, regex.DOTALL).search(text, at)
    if expected is None:
        assert search.match is None
        return
    assert search.match is not None
    assert (search.match.start, search.match.end) == expected.span()
    assert search.match.groups == {name: value for name, value in expected.groupdict().items() if value is not None}


def test_all_matches_of_a_text() -> None:
    assert [(found.start, found.end) for found in find_all(Pattern("a*"), "baac")] == [(0, 0), (1, 3), (3, 3), (4, 4)]
    assert [found.groups["x"] for found in find_all(Pattern(r"\[(?P<x>\w)\]"), "[a][b][cc][d]")] == ["a", "b", "d"]


def test_a_search_is_certain_as_soon_as_no_text_can_change_it() -> None:
    arriving = stream("xx <to")
    search = Search(Pattern(r"\s*<tool>"), arriving, 0)
    search.advance()
    assert (search.certain_to, search.match) == (2, None)
    arriving.push("y <tool>")
    search.advance()
    assert search.match is not None
    assert (search.match.start, search.match.end) == (7, 14)


def test_a_token_is_matched_only_where_it_is_looked_for() -> None:
    arriving = stream("abc")
    tokens = TokenMatcher(arriving)
    assert not tokens.match(Pattern("(?P<word>[a-z]+)")).is_over
    arriving.push("d1")
    search = tokens.match(Pattern("(?P<word>[a-z]+)"))
    assert search.match is not None
    assert search.match.groups == {"word": "abcd"}
    assert arriving.at == 4
    assert tokens.match(Pattern("[a-z]")).match is None


def test_the_beginning_of_a_match_is_given_up_at_the_limit() -> None:
    arriving = stream("<" + " " * 30 + ">< >")
    search = Search(Pattern(r"<\s*>"), arriving, 0, limit=10)
    search.advance()
    assert search.match is not None
    assert (search.match.start, search.match.end) == (32, 35)


def test_a_stream_keeps_what_is_needed_and_counts_what_it_gives() -> None:
    arriving = stream("abc", "", "def")
    assert arriving.take(4) == "abcd"
    arriving.forget(3)
    arriving.push("g")
    assert (arriving.start, arriving.at, arriving.text(3, 7)) == (3, 4, "defg")
    assert arriving.meter.examined == 8


@pytest.mark.parametrize(
    "source", [r"(a)\1", r"(?P<x>a)(?P=x)", "(?!a)b", "(?<!a)b", r"\bword", "(?>a)b", "a++", "(?i)a", "a(?=b)c"]
)
def test_what_needs_backtracking_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match=r"not supported|unsupported"):
        Pattern(source)


def test_patterns_are_compared_and_sent_by_their_source() -> None:
    pattern = Pattern("a+(?P<x>b)")
    list(find_all(pattern, "aab"))
    assert pickle.loads(pickle.dumps(pattern)) == pattern == Pattern("a+(?P<x>b)") != Pattern("a")
