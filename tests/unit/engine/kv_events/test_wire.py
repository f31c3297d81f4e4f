"""Batches on the wire, by hand: the positions and names of vLLM's fields."""

import msgspec
import pytest

from jaxserve.cache.events import Cleared, Removed, Stored
from jaxserve.engine.kv_events.wire import EventWire

ROOT, OTHER = b"r" * 16, b"o" * 16
FIRST, SECOND = bytes(range(16)), bytes(range(240, 256))  # hashes; their last 8 bytes
PUBLIC = (0x08090A0B0C0D0E0F, 0xF8F9FAFBFCFDFEFF)
EVENTS = [
    Stored(ROOT, None, (FIRST, SECOND), (1, 2, 3, 4), 0, 0),
    Stored(ROOT, FIRST, (SECOND,), (3, 4), 1, 0),
    Removed((SECOND, FIRST), (1, 0), 0),
    Cleared(),
]


def decoded(wire, events=EVENTS):
    seconds, found, rank = msgspec.msgpack.decode(wire.batch(1.5, events))
    assert (seconds, rank) == (1.5, 0)
    return found


def test_arrays():
    assert decoded(EventWire(2, (None,), ROOT.__eq__, "array")) == [
        ["BlockStored", list(PUBLIC), None, [1, 2, 3, 4], 2, None, "GPU", None],
        ["BlockStored", [PUBLIC[1]], PUBLIC[0], [3, 4], 2, None, "GPU", None],
        ["BlockRemoved", [PUBLIC[1], PUBLIC[0]], "GPU"],
        ["AllBlocksCleared"],
    ]


def test_maps():
    common = {"block_size": 2, "lora_id": None, "medium": "GPU", "lora_name": None}
    assert decoded(EventWire(2, (None,), ROOT.__eq__, "map")) == [
        {
            "type": "BlockStored",
            "block_hashes": list(PUBLIC),
            "parent_block_hash": None,
            "token_ids": [1, 2, 3, 4],
            **common,
        },
        {"type": "BlockStored", "block_hashes": [PUBLIC[1]], "parent_block_hash": PUBLIC[0], "token_ids": [3, 4], **common},
        {"type": "BlockRemoved", "block_hashes": [PUBLIC[1], PUBLIC[0]], "medium": "GPU"},
        {"type": "AllBlocksCleared"},
    ]


@pytest.mark.parametrize(
    ("windows", "group", "said"),
    [((None, 8), 0, [0, "full_attention"]), ((None, 8), 1, [1, "sliding_window", 8]), ((8,), 0, [None, "sliding_window", 8])],
)
def test_groups_and_windows_come_last(windows, group, said):
    wire = EventWire(2, windows, ROOT.__eq__, "array")
    stored, removed = decoded(wire, [Stored(ROOT, None, (FIRST,), (1, 2), 0, group), Removed((FIRST,), (0,), group)])
    assert stored[8:] == [None, *said]
    assert removed == ["BlockRemoved", [PUBLIC[0]], "GPU", *said[:1]][: 4 if said[0] is not None else 3]


def test_only_the_first_block_under_a_salt_says_so():
    wire = EventWire(2, (None,), ROOT.__eq__, "array")
    start, later = decoded(
        wire, [Stored(OTHER, None, (FIRST, SECOND), (1, 2, 3, 4), 0, 0), Stored(OTHER, FIRST, (SECOND,), (3, 4), 1, 0)]
    )
    assert start[8:] == [[[OTHER.hex()], None]]
    assert later[8:] == []
