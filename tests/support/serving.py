"""Servers on free loopback ports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from jaxserve.config.server import ServerConfig
from jaxserve.engine.client import EngineClient
from server.run import Servers


@dataclass(frozen=True)
class Serving:
    """Where the servers are: a base URL, and a target for grpc channels."""

    http: str
    grpc: str
    servers: Servers


@asynccontextmanager
async def serving(client: EngineClient, *, drain_timeout: float = 5.0, **settings: Any) -> AsyncIterator[Serving]:
    """Both servers in front of the client, stopped at the end; `settings` are ServerConfig's."""
    servers = Servers(client, ServerConfig(port=0, grpc_port=0, drain_timeout=drain_timeout, **settings))
    addresses = await servers.start()
    try:
        yield Serving(addresses.http, addresses.grpc.partition("://")[2], servers)
    finally:
        await servers.stop()
