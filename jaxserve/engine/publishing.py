"""Lets an engine publish what its prefix cache holds."""

from __future__ import annotations

from jaxserve.cache.prefix_hash import CacheNamespace
from jaxserve.config.kv_events import KVEventsConfig
from jaxserve.engine.core import EngineCore
from jaxserve.engine.kv_events.publisher import KVEventPublisher
from jaxserve.engine.kv_events.wire import EventWire


def publish(core: EngineCore, config: KVEventsConfig | None, namespace: CacheNamespace) -> None:
    """Publish from now on, before anything is cached; nothing happens without a `config`. Raises ConfigError."""
    if config is None:
        return
    cache = core.scheduler.cache
    wire = EventWire(cache.page_size, cache.windows, namespace.root(), config.format)
    core.publisher = KVEventPublisher(config, wire.batch)
    cache.prefixes.follow(core.publisher.take)
