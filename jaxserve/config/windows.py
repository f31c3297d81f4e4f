"""What sliding windows leave of a sequence: how many pages it holds, if those that no later token sees are given back.

Layers are grouped by their window, and every group has pages of its own for the same tokens; `windows` names the window of each
group: how many of the latest positions a token sees, itself included, or None for all of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


def first_column(window: int | None, num_computed: int, page_size: int) -> int:
    """Pages of a group that hold nothing but what the token at position `num_computed` and those after it do not see."""
    return 0 if window is None else max(0, (num_computed - window + 1) // page_size)


def touched_pages(num_tokens: int, page_size: int) -> int:
    """Pages at most that so many tokens in a row lie in, wherever they begin."""
    return (num_tokens + page_size - 2) // page_size + 1


def most_pages(window: int | None, num_tokens: int, page_size: int, chunk: int) -> int:
    """Pages of a group that a sequence of `num_tokens` holds at once at most, if a step computes `chunk` of its tokens."""
    pages = -(-num_tokens // page_size)
    return pages if window is None else min(pages, touched_pages(window - 1 + chunk, page_size))


def longest_sequence(windows: Sequence[int | None], num_pages: int, page_size: int, chunk: int) -> int | None:
    """Tokens of the longest sequence that so many pages hold; None if they hold any."""

    def held(columns: int) -> int:
        """Pages of a sequence that has so many in every group, or had."""
        return sum(most_pages(window, columns * page_size, page_size, chunk) for window in windows)

    if None not in windows and held(num_pages + 1) <= num_pages:
        return None
    return (bisect_right(range(num_pages + 1), num_pages, key=held) - 1) * page_size


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """Layers whose keys and values share pages.

    Attributes:
        windows: of each group; the largest of its layers'.
        places: each layer's group, and its number in it.
        size: layers of the largest group; a page has room for so many.
    """

    windows: tuple[int | None, ...]
    places: tuple[tuple[int, int], ...]
    size: int


def group_layers(windows: Sequence[int | None]) -> LayerGroups:
    """The groups of layers with these windows: one for all, which sees what the layer does that sees most."""
    limits = [window for window in windows if window is not None]
    widest = max(limits) if len(limits) == len(windows) else None
    return LayerGroups((widest,), tuple((0, layer) for layer in range(len(windows))), len(windows))
