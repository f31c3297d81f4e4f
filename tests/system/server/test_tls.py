"""TLS of both servers, with certificates and without, against real clients."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest

from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from tests.support.certificates import Authority, Pair
from tests.support.scripted import ScriptedClient
from tests.support.serving import Serving, serving


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("tls") / "authority")


@pytest.fixture
async def secured(authority: Authority) -> AsyncIterator[Serving]:
    pair = authority.issue("server")
    async with serving(ScriptedClient(), tls_cert=str(pair.cert), tls_key=str(pair.key)) as running:
        yield running


@pytest.fixture
async def mutual(authority: Authority) -> AsyncIterator[Serving]:
    """Servers that want a certificate of their clients."""
    pair = authority.issue("server")
    settings: dict[str, Any] = {"tls_cert": str(pair.cert), "tls_key": str(pair.key), "tls_client_ca": str(authority.own.cert)}
    async with serving(ScriptedClient(), **settings) as running:
        yield running


async def version(running: Serving, trusted: Authority, own: Pair | None = None) -> int:
    context = ssl.create_default_context(cafile=str(trusted.own.cert))
    if own is not None:
        context.load_cert_chain(own.cert, own.key)
    async with httpx.AsyncClient(base_url=running.http, verify=context, timeout=30) as client:
        return (await client.get("/version")).status_code


async def model(running: Serving, trusted: Authority, own: Pair | None = None) -> str:
    pair = () if own is None else (own.key.read_bytes(), own.cert.read_bytes())
    credentials = grpc.ssl_channel_credentials(trusted.own.cert.read_bytes(), *pair)
    async with grpc.aio.secure_channel(running.grpc, credentials) as channel:
        return str((await InferenceStub(channel).GetModelInfo(pb.GetModelInfoRequest(), timeout=5)).name)


async def test_clients_that_trust_the_authority(secured: Serving, authority: Authority) -> None:
    assert secured.http.startswith("https://")
    assert await version(secured, authority) == 200
    assert await model(secured, authority) == "echo"


async def test_clients_that_trust_another(secured: Serving, tmp_path: Path) -> None:
    other = Authority.make(tmp_path / "other")
    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        await version(secured, other)
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await model(secured, other)
    assert info.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_plain_text_gets_nothing(secured: Serving) -> None:
    async with httpx.AsyncClient(base_url=secured.http.replace("https", "http"), timeout=60) as client:
        with pytest.raises(httpx.TransportError):
            await client.get("/version")
    async with grpc.aio.insecure_channel(secured.grpc) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as info:
            await InferenceStub(channel).GetModelInfo(pb.GetModelInfoRequest(), timeout=5)
    assert info.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_clients_with_a_certificate(mutual: Serving, authority: Authority) -> None:
    own = authority.issue("client")
    assert await version(mutual, authority, own) == 200
    assert await model(mutual, authority, own) == "echo"


@pytest.mark.parametrize("signed", [False, True], ids=["without a certificate", "with another authority's"])
async def test_clients_that_nobody_vouches_for(mutual: Serving, authority: Authority, tmp_path: Path, signed: bool) -> None:
    own = Authority.make(tmp_path / "other").issue("client") if signed else None
    with pytest.raises((httpx.TransportError, ssl.SSLError)):
        await version(mutual, authority, own)
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await model(mutual, authority, own)
    assert info.value.code() is grpc.StatusCode.UNAVAILABLE
