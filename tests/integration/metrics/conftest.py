"""One small real engine behind both servers, watched."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from jaxserve.config.fields import CacheConfig, CompileConfig, EngineConfig, ModelConfig, SchedulerConfig
from jaxserve.config.server import ServerConfig
from jaxserve.engine.local import LocalEngine
from jaxserve.metrics.instruments import Instruments
from server.observe.observatory import Observatory
from server.run import Servers
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from tests.unit.metrics.scrape import values

MODEL = "tiny"


@dataclass(frozen=True)
class Watched:
    """An engine, its servers' addresses, and a client of the HTTP one."""

    engine: LocalEngine
    instruments: Instruments
    http: httpx.AsyncClient
    grpc: str

    async def metrics(self) -> dict[tuple[str, tuple[str, ...]], float]:
        reply = await self.http.get("/metrics")
        assert reply.status_code == 200
        return values(reply.content)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    directory: Path = write_tiny_checkpoint(tmp_path_factory.mktemp("models") / MODEL)
    return EngineConfig(
        model=ModelConfig(model=str(directory), load_format="dummy"),
        cache=CacheConfig(num_pages=33, page_size=8),
        scheduler=SchedulerConfig(
            max_num_seqs=4, max_num_batched_tokens=16, max_waiting=6, low_watermark=0.0, high_watermark=0.0, growth_reserve=0.0
        ),
        compile=CompileConfig(before_ready="fewest"),
    )


@pytest.fixture(scope="module")
async def watched(config: EngineConfig) -> AsyncIterator[Watched]:
    instruments = Instruments()
    engine = await LocalEngine.start(config, lambda what, done, total: None, instruments)
    server_config = ServerConfig(port=0, grpc_port=0, drain_timeout=5.0)
    servers = Servers(engine, server_config, Observatory(engine, server_config, instruments, metrics_seconds=0.0))
    addresses = await servers.start()
    async with httpx.AsyncClient(base_url=addresses.http, timeout=60) as http:
        yield Watched(engine, instruments, http, addresses.grpc.removeprefix("grpc://"))
    await servers.stop()
