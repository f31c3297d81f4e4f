"""Stop strings against a search in the whole text, for every split."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.tokenizer.stop_strings import StopStrings

# Few letters, so that stop strings overlap, repeat themselves and contain each other.
LETTERS = "ab\U0001f600"
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=5), max_size=4).map(tuple)
CHUNKS = st.lists(st.text(LETTERS, max_size=6), max_size=8)


def first_match(text: str, stop: tuple[str, ...]) -> tuple[int, str] | None:
    """The match that ends first, the longest of those: (its end, the stop string)."""
    for end in range(1, len(text) + 1):
        found = [s for s in stop if text[:end].endswith(s)]
        if found:
            return end, max(found, key=len)
    return None


def held_back(text: str, stop: tuple[str, ...]) -> int:
    """Length of the longest end of `text` that begins a stop string."""
    return max((n for s in stop for n in range(1, len(s)) if text.endswith(s[:n])), default=0)


@pytest.mark.parametrize("include", [False, True])
@given(stop=STOPS, chunks=CHUNKS)
@settings(max_examples=250, deadline=None)
def test_agrees_with_a_search_in_the_whole_text(include: bool, stop: tuple[str, ...], chunks: list[str]) -> None:
    strings = StopStrings(stop, include_in_output=include)
    seen, sent, reported = "", "", None
    for chunk in chunks:
        output = strings.push(chunk)
        sent += output.text
        match = first_match(seen + chunk, stop)
        if reported is not None:
            assert output.text == ""
            assert output.matched is None
            continue
        seen += chunk
        assert output.matched == (match[1] if match else None)
        reported = output.matched
        if match is None:
            # Exactly as much is out as can be: no stop string can reach back into it, and no more than that is kept.
            assert sent == (seen if include else seen[: len(seen) - held_back(seen, stop)])
    sent += strings.flush().text
    match = first_match(seen, stop)
    if match is None:
        assert sent == seen
    else:
        assert sent == seen[: match[0] if include else match[0] - len(match[1])]
    assert strings.flush().text == ""
