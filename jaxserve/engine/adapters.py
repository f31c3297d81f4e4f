"""Adapters of an engine: the names that requests give become keys of contents, which the scheduler and the prefix cache go by."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from jaxserve.adapters.peft import AdapterFormat
from jaxserve.adapters.store import AdapterStore
from jaxserve.config.lora import LoraConfig
from jaxserve.executor.local import LocalExecutor
from jaxserve.executor.lowering import Lowering
from jaxserve.scheduler.adapters import AdapterTable
from jaxserve.scheduler.request import EngineRequest
from sharding import shards_of


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


def make_adapters(config: LoraConfig, lowering: Lowering, executor: LocalExecutor, base_model: str) -> EngineAdapters | None:
    """Those that an engine begins with; None if it serves none. Raises CheckpointError for one that cannot be served."""
    if executor.adapters is None or config.shape is None:
        return None
    form = AdapterFormat(lowering.config, shards_of(lowering.mesh), config.shape.rank, lowering.options.dtype)
    store = AdapterStore(form, config.max_lora_rank, config.max_cpu_loras, executor.adapters, base_model)
    for module in config.modules():
        store.load(module.name, module.path)
    return EngineAdapters(store, AdapterTable(config.shape.slots, store.fetch))
