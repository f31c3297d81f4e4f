"""Adapters of an engine: the names that requests give become keys of contents, which the scheduler and the prefix cache go by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from jaxserve.adapters.store import AdapterStore
from jaxserve.adapters.use import AdapterUse
from jaxserve.cache.prefix_hash import adapter_root
from jaxserve.scheduler.adapters import AdapterTable
from jaxserve.scheduler.request import EngineRequest, Status
from jaxserve.scheduler.request import Sequence as EngineSequence


class EngineAdapters:
    """What the engine does about adapters; belongs to its thread.

    Attributes:
        store: they.
        table: where they are on the devices.

    Args:
        device_bytes: that their slots take on each device.
    """

    def __init__(self, store: AdapterStore, table: AdapterTable, device_bytes: int) -> None:
        self.store = store
        self.table = table
        self._device_bytes = device_bytes

    def bring(self, requests: Sequence[EngineRequest]) -> Future[None] | None:
        """Done when the adapter of a request has been read; None if it is at hand. Raises ModelNotFoundError."""
        key = self._key(requests[0])
        return None if self.table.has(key) else self.store.bring(key)

    def resolved(self, requests: Sequence[EngineRequest]) -> Sequence[EngineRequest]:
        """The sequences of a request with the key of their adapter, and prefixes of their own for it.

        Raises ModelNotFoundError for an adapter that is not known.
        """
        self.store.trim()
        first = requests[0]
        key = self._key(first)
        root = adapter_root(first.cache_root, key)
        return [replace(one, adapter=key, cache_root=root) for one in requests]

    def use(self, sequences: Iterable[EngineSequence]) -> AdapterUse:
        """Of the sequences that the scheduler has. An adapter that no name stands for any more is named by its content."""
        names = {info.key: info.name for info in reversed(self.store.listed())}
        running, waiting = set[str](), set[str]()
        for sequence in sequences:
            if key := sequence.request.adapter:
                (running if sequence.status is Status.RUNNING else waiting).add(names.get(key, key))
        slots, host = self.table.num_slots, self.store.num_bytes
        return AdapterUse(slots, sorted(running), sorted(waiting), self._device_bytes, host)

    def _key(self, request: EngineRequest) -> str:
        return self.store.find(request.adapter, request.tenant).key
