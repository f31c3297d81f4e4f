"""Lets an engine publish what its prefix cache holds."""

from __future__ import annotations

from collections.abc import Callable

from jaxserve.config.kv_events import KVEventsConfig
from jaxserve.engine.core import EngineCore
from jaxserve.engine.kv_events.publisher import KVEventPublisher
from jaxserve.engine.kv_events.wire import EventWire


def publish(core: EngineCore, config: KVEventsConfig | None, is_plain: Callable[[bytes], bool]) -> None:
    """Publish from now on, before anything is cached; nothing happens without a `config`. Raises ConfigError.

    `is_plain` says of a hash whether prompts without tenant and salt begin with it.
    """
    if config is None:
        return
    cache = core.scheduler.cache
    wire = EventWire(cache.page_size, cache.windows, is_plain, config.format)
    core.publisher = KVEventPublisher(config, wire.batch)
    cache.prefixes.follow(core.publisher.take)
