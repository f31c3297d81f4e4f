"""Gives an engine's memory to whoever trains beside it, and takes it back."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from jaxserve.engine.core import EngineCore
from jaxserve.engine.weight_updates import WeightUpdates
from jaxserve.errors import InvalidRequestError
from jaxserve.executor.local import LocalExecutor
from jaxserve.heap import give_back
from jaxserve.models.binding import Params

SleepTag = Literal["weights", "kv_cache"]
TAGS = ("weights", "kv_cache")
LEVELS = (1, 2)
_AWAY = "its weights are in the host's memory until it is woken"
_GONE = "its weights were dropped; update them"


class Sleep:
    """Puts an engine to sleep and wakes it; called by the thread that drives it, between two turns.

    Attributes:
        is_on: whether anything that `sleep` freed is still missing.
    """

    def __init__(self, core: EngineCore, executor: LocalExecutor, updates: WeightUpdates) -> None:
        self._core = core
        self._executor = executor
        self._updates = updates
        self._host: Params | None = None

    @property
    def is_on(self) -> bool:
        return self._core.pause.asleep is not None

    def sleep(self, level: int = 1) -> None:
        """End all requests as aborted, and free the KV cache and the weights: level 1 keeps these in the host's memory.

        Raises InvalidRequestError for another level. Asleep, it stays as it is, but that level 2 drops the host's copy.
        """
        if level not in LEVELS:
            raise InvalidRequestError(f"level must be 1 or 2, not {level!r}", param="level")
        executor, weights = self._executor, self._executor.weights
        self._core.cut_off()
        self._core.scheduler.cache.flush()
        if executor.has_cache:
            executor.drop_cache()
        if weights.missing is None:
            self._host = weights.to_host(self._core.beating) if level == 1 else None
            self._updates.unwatch()
            weights.drop(_AWAY if level == 1 else _GONE)
        elif level == LEVELS[-1] and self._host is not None:
            self._host = None
            weights.drop(_GONE)
        self._updates.changed()
        give_back()

    def wake_up(self, tags: Collection[str] | None = None) -> None:
        """Take memory back; requests are served when all is there. Raises InvalidRequestError for a tag that there is not."""
        wanted = TAGS if tags is None else tuple(tags)
        unknown = [tag for tag in wanted if tag not in TAGS]
        if unknown:
            raise InvalidRequestError(f"tags must be among {', '.join(TAGS)}, not {unknown[0]!r}", param="tags")
        executor = self._executor
        if "weights" in wanted and executor.weights.missing == _AWAY and self._host is not None:
            executor.weights.from_host(self._host)
            self._updates.watch()
        if executor.weights.missing != _AWAY:
            self._host = None
        if "kv_cache" in wanted and not executor.has_cache:
            executor.make_cache()
        self._updates.changed()
        give_back()
