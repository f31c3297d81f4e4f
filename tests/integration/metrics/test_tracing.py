"""Spans of requests, as a collector gets them over OTLP."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import grpc.aio
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from jaxserve.config.server import ServerConfig
from jaxserve.errors import ConfigError, InternalError
from jaxserve.metrics.instruments import Instruments
from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from server.observe.observatory import Observatory
from server.ports import Addresses
from server.run import Servers
from tests.support.scripted import ScriptedClient

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps the spans that it gets."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    async def Export(self, request, context):
        for resource in request.resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            assert names["service.name"] == "jaxserve"
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture
async def collector() -> AsyncIterator[tuple[Collector, str]]:
    server, kept = grpc.aio.server(), Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(kept, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield kept, f"http://127.0.0.1:{port}"
    await server.stop(None)


class Site:
    """Servers that send spans, stopped to get them out."""

    def __init__(self, engine: ScriptedClient, endpoint: str) -> None:
        config = ServerConfig(port=0, grpc_port=0, otlp_endpoint=endpoint)
        self.servers = Servers(engine, config, Observatory(engine, config, Instruments()))

    async def __aenter__(self) -> Addresses:
        return await self.servers.start()

    async def __aexit__(self, *error: object) -> None:
        async with asyncio.timeout(20):
            await self.servers.stop()


def attributes(span: Span) -> dict[str, object]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value") or "") for one in span.attributes}


async def test_a_request_has_spans_under_its_clients_span(collector: tuple[Collector, str]) -> None:
    kept, endpoint = collector
    engine = ScriptedClient(delay=0.02)
    async with Site(engine, endpoint) as addresses, httpx.AsyncClient(base_url=addresses.http, timeout=30) as client:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
        body = {"prompt": "hello", "max_tokens": 3, "stream": True}
        assert (await client.post("/v1/completions", json=body, headers=headers)).status_code == 200
        await client.get("/v1/models")  # asks nothing of the engine
    [root] = [span for span in kept.spans if span.kind == Span.SPAN_KIND_SERVER]
    assert root.name == "POST /v1/completions"
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, PARENT)
    assert attributes(root) == {"gen_ai.request.model": "echo", "jaxserve.request_id": "mine", "jaxserve.status": "200"}
    stages = {span.name: span for span in kept.spans if span is not root}
    assert set(stages) == {"queue", "prefill", "decode", "stream"}
    for span in stages.values():
        assert (span.trace_id, span.parent_span_id) == (root.trace_id, root.span_id)
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano <= root.end_time_unix_nano
        seen = attributes(span)
        assert (seen["gen_ai.usage.input_tokens"], seen["gen_ai.usage.output_tokens"]) == (5, 3)
        assert (seen["jaxserve.cached_tokens"], seen["gen_ai.response.finish_reasons"]) == (2, "length")
    assert stages["queue"].end_time_unix_nano == stages["prefill"].start_time_unix_nano
    assert stages["prefill"].end_time_unix_nano == stages["decode"].start_time_unix_nano
    assert stages["stream"].end_time_unix_nano == root.end_time_unix_nano
    assert "hello" not in str(kept.spans)


async def test_an_unsampled_client_gets_no_spans_and_an_odd_one_a_trace_of_its_own(collector: tuple[Collector, str]) -> None:
    kept, endpoint = collector
    async with Site(ScriptedClient(), endpoint) as addresses, httpx.AsyncClient(base_url=addresses.http, timeout=30) as client:
        for sent in (f"00-{TRACE}-{PARENT}-00", "odd", f"00-{'0' * 32}-{PARENT}-01"):
            body = {"prompt": "hello", "max_tokens": 1}
            assert (await client.post("/v1/completions", json=body, headers={"traceparent": sent})).status_code == 200
    roots = [span for span in kept.spans if span.kind == Span.SPAN_KIND_SERVER]
    assert len(roots) == 2
    assert all(not span.parent_span_id and span.trace_id.hex() != TRACE for span in roots)
    assert len({span.trace_id for span in roots}) == 2


async def test_calls_and_failures_have_spans(collector: tuple[Collector, str]) -> None:
    kept, endpoint = collector
    engine = ScriptedClient(failure=InternalError("broken"), fail_after=1)
    request = pb.GenerateRequest(text="hello", stopping=pb.Stopping(max_tokens=3))
    metadata = (("traceparent", f"00-{TRACE}-{PARENT}-01"),)
    async with Site(engine, endpoint) as addresses, grpc.aio.insecure_channel(addresses.grpc.removeprefix("grpc://")) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            assert [event async for event in InferenceStub(channel).Generate(request, metadata=metadata)]
    [root] = [span for span in kept.spans if span.kind == Span.SPAN_KIND_SERVER]
    assert (root.name, root.trace_id.hex()) == ("/jaxserve.v1.Inference/Generate", TRACE)
    assert root.status.code == Status.STATUS_CODE_ERROR
    assert attributes(root)["jaxserve.status"] == "INTERNAL"


async def test_no_collector_holds_nobody_up() -> None:
    async with (
        Site(ScriptedClient(), "http://127.0.0.1:9") as addresses,
        httpx.AsyncClient(base_url=addresses.http, timeout=30) as client,
    ):
        assert (await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})).status_code == 200


def test_spans_need_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "server.observe.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"jaxserve\[otel\]"):
        Observatory(ScriptedClient(), ServerConfig(otlp_endpoint="http://127.0.0.1:4317"), Instruments())
