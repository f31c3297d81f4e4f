"""Real servers on loopback in front of a scripted engine: one of a module's tests, which is new for each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc.aio
import httpx
import openai
import pytest

from tests.support.scripted import ScriptedClient
from tests.support.serving import Serving, serving


@pytest.fixture(scope="module")
def lasting_engine() -> ScriptedClient:
    return ScriptedClient()


@pytest.fixture
def engine(lasting_engine: ScriptedClient) -> ScriptedClient:
    vars(lasting_engine).clear()
    vars(lasting_engine).update(vars(ScriptedClient()))
    return lasting_engine


@pytest.fixture(scope="module")
async def lasting_servers(lasting_engine: ScriptedClient) -> AsyncIterator[Serving]:
    async with serving(lasting_engine) as running:
        yield running


@pytest.fixture
def servers(lasting_servers: Serving, engine: ScriptedClient) -> Serving:
    """For tests that leave them as they are."""
    return lasting_servers


@pytest.fixture
async def sdk(servers: Serving) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{servers.http}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def http(servers: Serving) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=servers.http, timeout=30) as client:
        yield client


@pytest.fixture
async def channel(servers: Serving) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(servers.grpc) as channel:
        yield channel
