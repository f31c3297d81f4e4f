"""What sliding windows leave of a sequence: how many pages it holds, if those that no later token sees are given back.

Layers are grouped by their window, and every group has pages of its own for the same tokens; `windows` names the window of each
group: how many of the latest positions a token sees, itself included, or None for all of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

MAX_GROUPS = 8  # every sequence has a page table for each
WORTH = 1 / 8  # of the layers must be spared by groups what the widest window sees, or there is one group


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
        windows: of each group.
        places: each layer's group, and its number in it.
        size: layers of the largest group; a page has room for so many.
    """

    windows: tuple[int | None, ...]
    places: tuple[tuple[int, int], ...]
    size: int

    def read_by(self, numbers: Sequence[int]) -> LayerGroups:
        """The same for layers that read what these have: the place of each is that of the one with its number; -1 for none."""
        return replace(self, places=tuple((-1, -1) if number < 0 else self.places[number] for number in numbers))

    @property
    def unbounded(self) -> int | None:
        """The first group whose layers see everything, so that no page of it goes before its sequence; None if there is none."""
        return self.windows.index(None) if None in self.windows else None


def group_layers(windows: Sequence[int | None]) -> LayerGroups:
    """The groups of layers with these windows: layers of a group have the same one, and all groups have room for as many layers.

    A page is as large in every group, so that all have one pool. Of the sizes that make at most MAX_GROUPS groups the one with
    the least empty room is taken, and of several the largest. Where few layers see less than others, and empty room takes what
    that spares, there is one group, which sees what the layer does that sees most.
    """
    counts = Counter(windows)
    widest = None if None in counts else max(window for window in windows if window is not None)

    def groups(size: int) -> int:
        return sum(-(-count // size) for count in counts.values())

    sizes = [size for size in range(max(counts.values()), 0, -1) if groups(size) <= MAX_GROUPS]
    size = min(sizes, key=lambda size: groups(size) * size, default=0)
    spared = 2 * len(windows) - counts[widest] - groups(size) * size if size else 0
    if len(counts) == 1 or spared < WORTH * len(windows):
        return LayerGroups((widest,), tuple((0, layer) for layer in range(len(windows))), len(windows))
    seen: Counter[int | None] = Counter()
    group_of: dict[tuple[int | None, int], int] = {}  # by window and number of the group among those with it
    places = []
    for window in windows:
        number, place = divmod(seen[window], size)
        places.append((group_of.setdefault((window, number), len(group_of)), place))
        seen[window] += 1
    return LayerGroups(tuple(window for window, _ in group_of), tuple(places), size)
