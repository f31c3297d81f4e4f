"""Adapters of an engine: the names that requests give become keys of contents, which the scheduler and the prefix cache go by."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from jaxserve.adapters.store import AdapterStore
from jaxserve.scheduler.adapters import AdapterTable
from jaxserve.scheduler.request import EngineRequest


class EngineAdapters:
    """What the engine does about adapters; belongs to its thread.

    Attributes:
        store: they.
        table: where they are on the devices.
    """

    def __init__(self, store: AdapterStore, table: AdapterTable) -> None:
        self.store = store
        self.table = table

    def bring(self, requests: Sequence[EngineRequest]) -> Future[None] | None:
        """Done when the adapter of a request has been read; None if it is in memory. Raises ModelNotFoundError."""
        return self.store.bring(self._key(requests[0]))

    def resolved(self, requests: Sequence[EngineRequest]) -> Sequence[EngineRequest]:
        """The sequences of a request with the key of their adapter, and prefixes of their own for it.

        Raises ModelNotFoundError for an adapter that is not known.
        """
        first = requests[0]
        key = self._key(first)
        root = hashlib.blake2b(first.cache_root + key.encode(), digest_size=len(first.cache_root)).digest()
        return [replace(one, adapter=key, cache_root=root) for one in requests]

    def _key(self, request: EngineRequest) -> str:
        return self.store.find(request.adapter, request.tenant).key
