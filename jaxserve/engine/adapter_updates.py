"""Takes an adapter that another process sends. What runs goes on with the one that it began with."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

from jaxserve.adapters.peft import HostAdapter
from jaxserve.engine.adapters import EngineAdapters
from jaxserve.engine.control import SentAdapter, SentMapping
from jaxserve.engine.core import EngineCore
from jaxserve.engine.pause import PauseMode
from jaxserve.errors import InvalidRequestError
from jaxserve.weights.live.trees import Arrays


class Fitting(NamedTuple):
    """The arrays that an adapter is made of."""

    names: Sequence[str]


class AdapterUpdates:
    """Of one adapter. Its methods are called by the thread that drives the engine, `check` by any."""

    def __init__(self, core: EngineCore, adapters: EngineAdapters, sent: SentAdapter) -> None:
        self._core = core
        self._adapters = adapters
        self._sent = sent

    @property
    def model(self) -> AdapterUpdates:
        """What takes its tree."""
        return self

    def fit(self, arrays: Arrays, mapping: SentMapping, *, partial: bool) -> Fitting:
        """All arrays, which are none but an adapter's. Raises as `AdapterTrees.fit`."""
        self._adapters.store.check_name(self._sent.name, self._sent.tenant, in_place=self._sent.in_place)
        self._adapters.trees.fit(arrays, self._sent.config, mapping)
        return Fitting(list(arrays))

    def check(self, params: Arrays, mapping: SentMapping, *, partial: bool) -> HostAdapter:
        """The adapter, whose numbers were looked at. Raises as `AdapterTrees.make`."""
        return self._adapters.trees.make(params, self._sent.config, mapping)

    def next_version(self, version: int | str | None, *, force: bool) -> None:
        """An adapter has none. Raises InvalidRequestError for one."""
        if version is not None:
            raise InvalidRequestError("version is of the model's weights: leave it out for an adapter", param="version")

    def put(self, incoming: HostAdapter, version: None, *, mode: PauseMode) -> Future[None]:
        """Let requests name it, once what runs was treated as `mode` says."""
        done: Future[None] = Future()

        def commit() -> None:
            sent, running = self._sent, self._core.scheduler.sequences.values()
            try:
                self._adapters.give(sent.name, incoming, running, tenant=sent.tenant, in_place=sent.in_place)
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        self._core.pause.between(mode, commit, done.set_exception)
        return done
