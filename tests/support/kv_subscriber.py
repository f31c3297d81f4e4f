"""A subscriber to KV events, written from vLLM's description of them: what other projects have."""

from __future__ import annotations

from typing import Any

import msgspec
import zmq

PATIENCE_MS = 20_000
CONNECTING_MS = 2_000
END = (-1).to_bytes(8, "big", signed=True)


class ArrayEvent(msgspec.Struct, array_like=True, tag=True):
    """As older releases of vLLM declare it."""


class MapEvent(msgspec.Struct, omit_defaults=True, tag=True):
    """As vLLM 0.33 declares it."""


def _events(base: type) -> dict[str, type]:
    """The events of either kind."""
    hashes, number, text = list[bytes | int], int | None, str | None
    stored = [
        ("block_hashes", hashes),
        ("parent_block_hash", bytes | int | None),
        ("token_ids", list[int]),
        ("block_size", int),
        ("lora_id", number),
        ("medium", text),
        ("lora_name", text),
        ("extra_keys", list[tuple[Any, ...] | None] | None, None),
        ("group_idx", number, None),
        ("kv_cache_spec_kind", text, None),
        ("kv_cache_spec_sliding_window", number, None),
    ]
    removed = [("block_hashes", hashes), ("medium", text), ("group_idx", number, None)]
    fields: dict[str, list[Any]] = {"BlockStored": stored, "BlockRemoved": removed, "AllBlocksCleared": []}
    return {name: msgspec.defstruct(name, fields[name], bases=(base,), tag=name) for name in fields}


def _decoder(base: type) -> msgspec.msgpack.Decoder[Any]:
    stored, removed, cleared = _events(base).values()
    batch = msgspec.defstruct(
        "KVEventBatch",
        [("ts", float), ("events", list[stored | removed | cleared]), ("data_parallel_rank", int | None, None)],  # type: ignore[valid-type]
        array_like=True,
    )
    return msgspec.msgpack.Decoder(batch)


DECODERS = {"array": _decoder(ArrayEvent), "map": _decoder(MapEvent)}


class Subscriber:
    """Knows the blocks that an engine holds: (hash, group) -> all tokens of the prompt up to its end.

    Attributes:
        events: all that came, in order.
        last: number of the latest batch.
    """

    def __init__(self, endpoint: str, replay_endpoint: str, topic: str, format: str) -> None:
        self.blocks: dict[tuple[int, int | None], tuple[int, ...]] = {}
        self.events: list[Any] = []
        self.last = -1
        self._chains: dict[int, tuple[int, ...]] = {}  # of all that ever were stored: a parent may be gone, or be another group's
        self._decoder = DECODERS[format]
        self._context = zmq.Context()
        self._topic = topic.encode()
        self._live = self._context.socket(zmq.SUB)
        self._live.setsockopt(zmq.SUBSCRIBE, self._topic)
        self._live.connect(endpoint)
        self._replays = self._context.socket(zmq.DEALER)
        self._replays.connect(replay_endpoint)

    def close(self) -> None:
        self._context.destroy(0)

    def follow(self, last: int) -> None:
        """Take what comes up to a batch, and ask for what is missing in between.

        What is told before the connection is there never comes: after a while it is asked for, too.
        """
        for _ in range(PATIENCE_MS // CONNECTING_MS):
            if self._take_live(last):
                return
            self.catch_up()
        raise AssertionError(f"batch {self.last + 1} did not come")

    def _take_live(self, last: int) -> bool:
        """Take what comes up to a batch; false if nothing comes for a while before."""
        while self.last < last:
            if not self._live.poll(CONNECTING_MS):
                return False
            topic, number, payload = self._live.recv_multipart()
            assert topic == self._topic
            if int.from_bytes(number, "big") > self.last + 1:
                self.catch_up()
            self.take(number, payload)
        return True

    def catch_up(self) -> None:
        """Ask for all that there is after the latest batch."""
        self._replays.send_multipart((b"", (self.last + 1).to_bytes(8, "big")))
        while True:
            assert self._replays.poll(PATIENCE_MS), "the replay did not end"
            _, number, payload = self._replays.recv_multipart()
            if number == END:
                assert payload == b""
                return
            self.take(number, payload)

    def take(self, number: bytes, payload: bytes) -> None:
        assert len(number) == 8
        if int.from_bytes(number, "big") <= self.last:
            return
        assert int.from_bytes(number, "big") == self.last + 1, "nothing is missing in between"
        self.last += 1
        batch = self._decoder.decode(payload)
        assert batch.ts > 0
        assert batch.data_parallel_rank == 0
        for event in batch.events:
            self.events.append(event)
            self._apply(event)

    def _apply(self, event: Any) -> None:
        kind = type(event).__name__
        if kind == "AllBlocksCleared":
            self.blocks.clear()
        elif kind == "BlockRemoved":
            for name in event.block_hashes:
                del self.blocks[name, event.group_idx]
        else:
            tokens, size = event.token_ids, event.block_size
            before = () if event.parent_block_hash is None else self._chains[event.parent_block_hash]
            assert len(tokens) == size * len(event.block_hashes)
            for place, name in enumerate(event.block_hashes):
                assert (name, event.group_idx) not in self.blocks, "it is not held yet"
                before = (*before, *tokens[place * size : (place + 1) * size])
                self.blocks[name, event.group_idx] = self._chains[name] = before
