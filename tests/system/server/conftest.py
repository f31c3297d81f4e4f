"""The fixtures of tests/integration/server."""

from tests.integration.server.conftest import channel, engine, http, lasting_engine, lasting_servers, sdk, servers

__all__ = ["channel", "engine", "http", "lasting_engine", "lasting_servers", "sdk", "servers"]
