"""How many pages windows leave of a sequence, counted token by token."""

from hypothesis import given
from hypothesis import strategies as st

from jaxserve.config.windows import first_column, group_layers, longest_sequence, most_pages

SIZES, CHUNKS = st.integers(1, 5), st.integers(1, 6)
WINDOWS = st.one_of(st.none(), st.integers(1, 12))


def seen(window: int | None, position: int) -> range:
    """Positions that the token at this one sees."""
    return range(0 if window is None else max(0, position - window + 1), position + 1)


@given(window=WINDOWS, computed=st.integers(0, 30), size=SIZES)
def test_pages_before_the_first_column_are_seen_by_no_token_to_come(window, computed, size):
    pages = [{place // size for place in seen(window, position)} for position in range(computed, computed + 40)]
    assert first_column(window, computed, size) == min(set().union(*pages))


@given(window=WINDOWS, length=st.integers(1, 30), size=SIZES, chunk=CHUNKS)
def test_a_sequence_holds_what_its_steps_see(window, length, size, chunk):
    def held(start: int) -> int:
        """Pages of a step that computes a chunk from here."""
        end = min(start + chunk, length)
        return len({place // size for position in range(start, end) for place in seen(window, position)})

    most = max(held(start) for start in range(length))
    assert most_pages(window, length, size, chunk) >= most
    longer = max(held(start) for start in range(length)) if window is None else most_pages(window, 10**6, size, chunk)
    assert longer == most or length < (window or 0) + chunk + size


@given(windows=st.lists(WINDOWS, min_size=1, max_size=3), pages=st.integers(0, 40), size=SIZES, chunk=CHUNKS)
def test_the_longest_sequence_is_the_longest(windows, pages, size, chunk):
    longest = longest_sequence(windows, pages, size, chunk)

    def needed(length: int) -> int:
        return sum(most_pages(window, length, size, chunk) for window in windows)

    if longest is None:
        assert needed(10**6) <= pages
    else:
        assert needed(longest) <= pages < needed(longest + 1)


def test_layers_of_one_window_are_one_group():
    groups = group_layers((16, 16, 16))
    assert (groups.windows, groups.places, groups.size) == ((16,), ((0, 0), (0, 1), (0, 2)), 3)
    assert group_layers((None, None)).windows == (None,)
