"""--kv-events-config: what vLLM's users write."""

import pytest

from jaxserve.config.fields import CacheConfig
from jaxserve.config.kv_events import KVEventsConfig, parse_kv_events
from jaxserve.config.start import read_start
from jaxserve.errors import ConfigError

THEIRS = '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", "topic": "kv@pod@model"}'


def test_an_object_of_theirs_is_read():
    start = read_start(["--kv-events-config", THEIRS], "prog", "")
    assert start.engine.cache.kv_events == KVEventsConfig(
        enable_kv_cache_events=True, endpoint="tcp://*:5557", topic="kv@pod@model", buffer_steps=10_000, format="array"
    )


@pytest.mark.parametrize(
    "setting",
    [
        None,
        "{}",
        '{"enable_kv_cache_events": false, "publisher": "zmq"}',
        '{"enable_kv_cache_events": true, "publisher": "null"}',
    ],
)
def test_where_nothing_is_asked_for_nothing_is_published(setting):
    assert parse_kv_events(setting) is None


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("tcp://*:5557", "must be a JSON object of enable_kv_cache_events, publisher, .*malformed"),
        ('{"enabled": true}', "unknown field `enabled`"),
        ('{"publisher": "nats"}', "Invalid enum value 'nats'"),
        ('{"endpoint": "*:5557"}', r"endpoint must be such as 'tcp://\*:5557', got '\*:5557'"),
        ('{"replay_endpoint": ""}', r"replay_endpoint must be such as 'tcp://\*:5557', got ''"),
        ('{"buffer_steps": -1}', "buffer_steps must be at least 0, got -1"),
        ('{"hwm": -1}', "hwm must be at least 0, got -1"),
        ('{"max_queue_size": 0}', "max_queue_size must be at least 1, got 0"),
        ('{"format": "json"}', "Invalid enum value 'json'"),
    ],
)
def test_what_cannot_be_is_named(setting, said):
    with pytest.raises(ConfigError, match=said) as refused:
        CacheConfig(kv_events_config=setting)
    assert refused.value.param == "kv_events_config"


def test_what_is_never_found_is_not_published():
    with pytest.raises(ConfigError, match="kv_events_config needs prefix_caching"):
        CacheConfig(kv_events_config=THEIRS, prefix_caching=False)
    assert CacheConfig(kv_events_config="{}", prefix_caching=False).kv_events is None
