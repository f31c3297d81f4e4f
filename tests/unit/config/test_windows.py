"""How many pages windows leave of a sequence, counted token by token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.config.windows import LayerGroups, first_column, group_layers, longest_sequence, most_pages

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
    assert group_layers((16, 16, 16)) == LayerGroups((16,), ((0, 0), (0, 1), (0, 2)), 3)
    assert group_layers((None, None)) == LayerGroups((None,), ((0, 0), (0, 1)), 2)


@pytest.mark.parametrize(
    ("windows", "groups", "size"),
    [
        ((4096, None) * 21, (4096, None), 21),  # Gemma 2 9B
        ((128, None) * 18, (128, None), 18),  # gpt-oss 120B
        (((512,) * 5 + (None,)) * 4 + (512,) * 2, (512, 512, None, 512, 512, 512, 512), 4),  # Gemma 3 1B
        (((1024,) * 5 + (None,)) * 10 + (1024,) * 2, (1024, None, 1024, 1024, 1024), 13),  # Gemma 3 27B
        ((None, 20, 20), (None, 20, 20), 1),
        ((None,) * 20 + (64,), (None,), 21),  # the one layer is not worth a group
        ((64,) * 20 + (32,), (64,), 21),
        (tuple(range(1, 10)), (9,), 9),  # more windows than groups
    ],
)
def test_layers_are_grouped_by_their_window(windows, groups, size):
    made = group_layers(windows)
    assert (made.windows, made.size) == (groups, size)
    assert len(set(made.places)) == len(windows)
    for window, (group, place) in zip(windows, made.places, strict=True):
        assert place < size
        assert made.windows[group] == window or len(groups) == 1
