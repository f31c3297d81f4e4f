"""Adapters of an engine: the names that requests give become keys of contents, which the scheduler and the prefix cache go by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

from jaxserve.adapters.config import AdapterConfig
from jaxserve.adapters.folder import AdapterFolder
from jaxserve.adapters.peft import HostAdapter
from jaxserve.adapters.request import LoRARequest
from jaxserve.adapters.store import AdapterInfo, AdapterStore
from jaxserve.adapters.use import AdapterUse
from jaxserve.cache.prefix_hash import adapter_root
from jaxserve.errors import InvalidRequestError
from jaxserve.scheduler.adapters import AdapterTable
from jaxserve.scheduler.request import EngineRequest, Status
from jaxserve.scheduler.request import Sequence as EngineSequence
from jaxserve.types import RequestOptions


class Trees(Protocol):
    """See `adapters.trees.AdapterTrees`, which front ends must not import."""

    def make(self, params: Any, config: Mapping[str, Any] | AdapterConfig, mapping: Any) -> HostAdapter: ...

    def fit(self, arrays: Mapping[str, Any], config: Mapping[str, Any], mapping: Any) -> object: ...


class EngineAdapters:
    """What the engine does about adapters; belongs to its thread.

    Attributes:
        store: they.
        table: where they are on the devices.
        trees: what makes adapters of arrays.

    Args:
        device_bytes: that their slots take on each device.
        folder: that is watched for as long as the engine is there; None for none.
    """

    def __init__(
        self, store: AdapterStore, table: AdapterTable, trees: Trees, device_bytes: int, folder: AdapterFolder | None = None
    ) -> None:
        self.store = store
        self.table = table
        self.trees = trees
        self._device_bytes = device_bytes
        self._folder = folder

    def give(
        self,
        name: str,
        adapter: HostAdapter,
        running: Iterable[EngineSequence],
        *,
        tenant: str | None = None,
        in_place: bool = False,
        pin: bool = False,
    ) -> AdapterInfo:
        """Let requests name an adapter that came as arrays; see `AdapterStore.give`. `running` are the unfinished sequences."""
        return self.store.give(name, adapter, self._used(running), tenant=tenant, in_place=in_place, pin=pin)

    def let_go(self, running: Iterable[EngineSequence]) -> None:
        """Forget adapters that came as arrays, that nobody can name any more, and that no unfinished sequence needs."""
        if self.store.has_unnamed:
            self.store.let_go(self._used(running))

    def bring(self, requests: Sequence[EngineRequest]) -> Future[None] | None:
        """Done when the adapter of a request has been read; None if it is at hand. Raises ModelNotFoundError."""
        key = self._key(requests[0])
        return None if self.table.has(key) else self.store.bring(key)

    def named(
        self, options: list[RequestOptions], given: LoRARequest | Sequence[LoRARequest | None] | None
    ) -> list[RequestOptions]:
        """Options that name the adapters, which are known from now on. Raises as `AdapterStore.load`."""
        each = [given] * len(options) if given is None or isinstance(given, LoRARequest) else list(given)
        if len(each) != len(options):
            raise InvalidRequestError(f"lora_request has {len(each)} entries for {len(options)} prompts", param="lora_request")
        known = {info.name: info.path for info in self.store.listed()}
        for one in each:
            if one is not None and known.get(one.lora_name) != str(one.lora_path):
                self.store.load(one.lora_name, one.lora_path, in_place=True)
                known[one.lora_name] = str(one.lora_path)
        return [
            option if one is None else replace(option, adapter=one.lora_name) for option, one in zip(options, each, strict=True)
        ]

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

    def _used(self, running: Iterable[EngineSequence]) -> frozenset[str]:
        return self.table.coming.union(one.request.adapter for one in running)

    def _key(self, request: EngineRequest) -> str:
        return self.store.find(request.adapter, request.tenant).key
