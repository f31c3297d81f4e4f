"""Prompts of named parts, hashed as the prefix cache hashes them."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from jaxserve.cache.prefix_hash import page_hash
from jaxserve.routing.router import RoutingRequest

PAGE = 128  # as many tokens as from one landmark to the next: every page is one


def pages(*parts: tuple[str, int], root: bytes = b"model") -> tuple[bytes, ...]:
    """Hashes of a prompt that consists of parts, each a name and a number of pages."""
    contents = [[hash_of(name, place)] for name, count in parts for place in range(count)]
    return tuple(accumulate(contents, page_hash, initial=root))[1:]


def hash_of(name: str, place: int) -> int:
    return int.from_bytes(page_hash(name.encode(), [place])[:3], "little")


def request(name: str, *parts: tuple[str, int], root: bytes = b"model", **more: Any) -> RoutingRequest:
    hashes = pages(*parts, root=root)
    settings = {"tokens": len(hashes) * PAGE + 1, "output_tokens": 10, "page_size": PAGE, **more}
    return RoutingRequest(id=name, **{"pages": hashes, **settings})
