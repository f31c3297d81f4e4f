"""The fixtures of tests/integration/gateway."""

from tests.integration.gateway.conftest import channel, engine, http, keys_file, servers, usage_log

__all__ = ["channel", "engine", "http", "keys_file", "servers", "usage_log"]
