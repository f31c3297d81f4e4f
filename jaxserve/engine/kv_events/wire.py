"""KV events as vLLM's subscribers read them.

A batch is the array [seconds since 1970, events, data-parallel rank] in msgpack. An event is an array that begins with its kind,
or a map that has it as "type". Of a hash its last 8 bytes are sent, as an unsigned integer, big end first: what vLLM sends, and
what every reader of its events takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from jaxserve.cache.events import CacheEvent, Removed, Stored
from jaxserve.config.kv_events import EventFormat

RANK = 0  # data-parallel: an engine is the only one behind its endpoint
MEDIUM = "GPU"  # their word for the device's memory; pages elsewhere are not found

Encode = Callable[[float, Sequence[CacheEvent]], bytes]
"""(time, events) -> a batch."""


@dataclass(frozen=True, slots=True)
class EventWire:
    """Encodes the events of one cache.

    Attributes:
        page_size: tokens a page.
        windows: of each group of layers; None for a group that sees everything.
        is_plain: whether a root is that of prompts without tenant and salt. Pages of others say so, by the root's hash: nobody
            learns a salt from it.
        format: of events.
    """

    page_size: int
    windows: tuple[int | None, ...]
    is_plain: Callable[[bytes], bool]
    format: EventFormat

    def batch(self, seconds: float, events: Sequence[CacheEvent]) -> bytes:
        encode = _array if self.format == "array" else _map
        return msgspec.msgpack.encode([seconds, [encode(*self._fields(event)) for event in events], RANK])

    def _fields(self, event: CacheEvent) -> tuple[str, Mapping[str, Any]]:
        """Its kind, and its fields in their order; those at the end that are None may be left out."""
        if isinstance(event, Stored):
            window = self.windows[event.group]
            salted = event.parent is None and not self.is_plain(event.root)
            return "BlockStored", {
                "block_hashes": [public_hash(digest) for digest in event.hashes],
                "parent_block_hash": None if event.parent is None else public_hash(event.parent),
                "token_ids": event.tokens,
                "block_size": self.page_size,
                "lora_id": None,
                "medium": MEDIUM,
                "lora_name": None,
                "extra_keys": [(event.root.hex(),), *(None for _ in event.hashes[1:])] if salted else None,
                "group_idx": self._group(event.group),
                "kv_cache_spec_kind": self._kind(window),
                "kv_cache_spec_sliding_window": window,
            }
        if isinstance(event, Removed):
            hashes = [public_hash(digest) for digest in event.hashes]
            return "BlockRemoved", {"block_hashes": hashes, "medium": MEDIUM, "group_idx": self._group(event.group)}
        return "AllBlocksCleared", {}

    def _group(self, group: int) -> int | None:
        return group if len(self.windows) > 1 else None

    def _kind(self, window: int | None) -> str | None:
        if window is not None:
            return "sliding_window"
        return "full_attention" if len(self.windows) > 1 else None


_MAY_LACK = ("extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window")


def public_hash(digest: bytes) -> int:
    return int.from_bytes(digest[-8:], "big")


def _array(kind: str, fields: Mapping[str, Any]) -> list[Any]:
    values = [kind, *fields.values()]
    for name in reversed(list(fields)):
        if fields[name] is not None or name not in _MAY_LACK:
            break
        values.pop()
    return values


def _map(kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": kind, **{name: value for name, value in fields.items() if value is not None or name not in _MAY_LACK}}
