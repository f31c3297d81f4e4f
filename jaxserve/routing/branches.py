"""Branches: where prompts that begin alike go apart, learned from traffic.

Shared system prompts differ in length, and all prompts of a model may share their first page. So no fixed number of leading pages
says what a prompt is one of: the last page that others went on from differently does.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxserve.routing.fair_lru import FairLru

_TWICE = 2  # once may be a conversation going on


class Branches:
    """Pages after which prompts were seen to go on in new ways, of a bounded number."""

    def __init__(self, most: int) -> None:
        self._times: FairLru[bytes, int] = FairLru(most)

    def __len__(self) -> int:
        return len(self._times)

    def parted(self, tenant: str, page: bytes) -> None:
        """A prompt went on from here as none before it that is remembered."""
        self._times.put(tenant, page, min((self._times.get(page) or 0) + 1, _TWICE))
        self._times.trim()

    def deepest(self, pages: Sequence[bytes]) -> int:
        """How many of these pages there are up to the last that prompts went apart after; 0 if there is none."""
        for depth in range(len(pages), 0, -1):
            if self._times.get(pages[depth - 1]) == _TWICE:
                return depth
        return 0
