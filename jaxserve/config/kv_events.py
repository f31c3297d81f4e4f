"""KV events as a setting says them: a JSON object with the names of vLLM's KVEventsConfig, and the format."""

from __future__ import annotations

from typing import Literal

import msgspec

from jaxserve.errors import ConfigError

EventFormat = Literal["array", "map"]

_PARAM = "kv_events_config"


class KVEventsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where events go.

    Attributes:
        enable_kv_cache_events: whether there are any.
        publisher: "zmq"; "null" for none either.
        endpoint: of the ZeroMQ PUB socket. It listens where there is a "*" or "::", or at ipc: and inproc:, and else connects.
        replay_endpoint: that a ROUTER socket listens at for who asks for what it missed; None for nobody.
        buffer_steps: batches that are kept for them.
        hwm: batches that wait for a subscriber at most; it misses more. 0 for any number.
        max_queue_size: batches that wait to be sent at most; more are lost, and their numbers missing.
        topic: that they are published under.
        format: of events: "array" by position, which older releases of vLLM send and llm-d reads; "map" by name, as 0.33 does.
    """

    enable_kv_cache_events: bool = False
    publisher: Literal["zmq", "null"] = "zmq"
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""
    format: EventFormat = "array"


def parse_kv_events(setting: str | None) -> KVEventsConfig | None:
    """Read a setting; None where nothing is to be published. Raises ConfigError for what is none."""
    if setting is None:
        return None
    try:
        config = msgspec.json.decode(setting, type=KVEventsConfig)
    except msgspec.DecodeError as error:
        names = ", ".join(KVEventsConfig.__struct_fields__)
        raise ConfigError(f"{_PARAM} must be a JSON object of {names}: {error}", param=_PARAM) from error
    for name, endpoint in (("endpoint", config.endpoint), ("replay_endpoint", config.replay_endpoint)):
        if endpoint is not None and not all(endpoint.partition("://")):
            raise ConfigError(f"{_PARAM}: {name} must be such as 'tcp://*:5557', got {endpoint!r}", param=_PARAM)
    for name, low in (("buffer_steps", 0), ("hwm", 0), ("max_queue_size", 1)):
        if getattr(config, name) < low:
            raise ConfigError(f"{_PARAM}: {name} must be at least {low}, got {getattr(config, name)}", param=_PARAM)
    return config if config.enable_kv_cache_events and config.publisher == "zmq" else None
