"""Classes, deadlines, refusals and the prefix cache over a real engine that runs one sequence at a time, slowly."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import grpc.aio
import httpx
import openai
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from jaxserve.config.fields import CacheConfig, CompileConfig, EngineConfig, ModelConfig, SchedulerConfig
from jaxserve.engine.events import Event
from jaxserve.engine.local import LocalEngine
from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from jaxserve.sampling.params import SamplingParams
from tests.support.serving import Serving, serving
from tests.support.tiny_checkpoint import write_tiny_checkpoint

STEP_SECONDS = 0.01
PATIENCE = 20.0
WARM = "In the beginning"
SHORT: dict[str, Any] = {
    "model": "tiny",
    "prompt": "to be",
    "max_tokens": 2,
    "temperature": 0.0,
    "extra_body": {"ignore_eos": True},
}
POLICIES = {"tenants": {"small": {"kv_share": 0.1, "kv_cap": 0.1}}, "classes": {"interactive_free": {"max_total_tokens": 20}}}


@pytest.fixture(scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> LocalEngine:
    folder: Path = tmp_path_factory.mktemp("models")
    directory = write_tiny_checkpoint(folder / "tiny")
    (folder / "warm.jsonl").write_text(json.dumps({"prompt": WARM, "tenant": "warm", "pin": True}))
    (folder / "policies.json").write_text(json.dumps(POLICIES))
    config = EngineConfig(
        model=ModelConfig(model=str(directory), load_format="dummy"),
        cache=CacheConfig(num_pages=101, page_size=4, warm_prompts=str(folder / "warm.jsonl")),
        scheduler=SchedulerConfig(
            max_num_seqs=1, max_num_batched_tokens=16, max_waiting=4, policies=str(folder / "policies.json")
        ),
        compile=CompileConfig(before_ready="fewest"),
    )
    engine = await LocalEngine.start(config, lambda what, done, total: None)
    executor = engine._built.core.executor
    submit = executor.submit

    def slowly(plan: Any) -> Any:
        time.sleep(STEP_SECONDS)
        return submit(plan)

    executor.submit = slowly  # type: ignore[method-assign]
    return engine


@pytest.fixture(scope="module")
async def servers(engine: LocalEngine) -> AsyncIterator[Serving]:
    async with serving(engine) as running:
        yield running


@pytest.fixture
async def sdk(servers: Serving) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{servers.http}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(autouse=True)
async def nothing_left(engine: LocalEngine) -> AsyncIterator[None]:
    """Whatever a test did: every request is accounted for and nothing of it is left but the pinned pages."""
    yield
    async with asyncio.timeout(PATIENCE):
        while engine.stats().running or engine.stats().waiting or engine.stats().active:
            await asyncio.sleep(0.005)
    stats, cache = engine.stats(), engine._built.core.scheduler.cache
    assert stats.pages_free + cache.num_pinned == stats.pages_total
    assert stats.received == stats.finished + stats.aborted + stats.rejected


@asynccontextmanager
async def busy(engine: LocalEngine) -> AsyncIterator[AsyncGenerator[Event, None]]:
    """The only slot is taken by a request that would take seconds, until the end of the block."""
    stream: Any = engine.generate("to be or not", SamplingParams(max_tokens=240, ignore_eos=True))
    async with aclosing(stream):
        await anext(stream)
        yield stream


async def test_a_request_that_does_not_start_in_time(engine: LocalEngine, servers: Serving, sdk: openai.AsyncOpenAI) -> None:
    before = engine.stats()
    async with busy(engine) as running:
        for stream in (False, True):
            with pytest.raises(openai.APIStatusError) as late:
                await sdk.completions.create(**SHORT | {"extra_body": {"queue_timeout": 0.05}}, stream=stream)
            assert late.value.status_code == 504
            assert (late.value.code, late.value.type) == ("deadline_exceeded", "timeout_error")
            assert int(late.value.response.headers["retry-after"]) >= 1
            assert "queue_timeout is 0.05 s" in late.value.message
        async with grpc.aio.insecure_channel(servers.grpc) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as status:
                await InferenceStub(channel).Generate(pb.GenerateRequest(text="x", queue_timeout=0.05)).read()
        assert status.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        retry = error_details_pb2.RetryInfo()
        assert any(detail.Unpack(retry) for detail in rpc_status.from_call(cast(Any, status.value)).details)
        assert retry.retry_delay.ToMilliseconds() >= 1000
        assert await anext(running), "what ran goes on"
    assert engine.stats().rejected - before.rejected == 3
    assert engine.stats().aborted - before.aborted == 1


async def read_all(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]  # the stubs lack it
        pass


async def test_a_request_that_does_not_end_in_time(engine: LocalEngine, servers: Serving, sdk: openai.AsyncOpenAI) -> None:
    before = engine.stats()
    long = SHORT | {"max_tokens": 240, "extra_body": {"timeout": 0.5, "ignore_eos": True}}
    with pytest.raises(openai.APIStatusError) as late:
        await sdk.completions.create(**long)
    assert (late.value.status_code, late.value.code) == (504, "deadline_exceeded")
    chunks = 0
    with pytest.raises(openai.APIError, match=r"timeout is 0.5 s: the request took .* and did not end in time"):  # noqa: PT012 - fails while it is read
        async for _ in await sdk.completions.create(**long, stream=True):
            chunks += 1
    assert chunks > 0
    async with grpc.aio.insecure_channel(servers.grpc) as channel:
        stopping = pb.Stopping(max_tokens=240, ignore_eos=True)
        call = InferenceStub(channel).Generate(pb.GenerateRequest(text="x", timeout=0.5, stopping=stopping))
        assert (await call.read()).HasField("started")
        with pytest.raises(grpc.aio.AioRpcError) as status:
            await read_all(call)
    assert status.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert engine.stats().aborted - before.aborted == 3


async def test_a_request_that_would_wait_too_long_is_refused_at_once(engine: LocalEngine, sdk: openai.AsyncOpenAI) -> None:
    async with busy(engine) as running:
        waiting = asyncio.create_task(sdk.completions.create(**SHORT | {"max_tokens": 200}))
        for _ in range(5):  # the engine learns how fast it works while somebody waits
            await anext(running)
        with pytest.raises(openai.InternalServerError) as refused:
            await sdk.completions.create(**SHORT | {"extra_body": {"queue_timeout": 0.001}})
        assert (refused.value.status_code, refused.value.code) == (503, "overloaded")
        assert int(refused.value.response.headers["retry-after"]) >= 1
        with pytest.raises(openai.APITimeoutError):  # batch work is never refused for a long queue: it waits
            await sdk.completions.create(**SHORT | {"extra_body": {"service_class": "batch"}}, timeout=0.3)
        waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_full_queue(engine: LocalEngine, servers: Serving, sdk: openai.AsyncOpenAI) -> None:
    async with busy(engine):
        waiting = asyncio.create_task(sdk.completions.create(**SHORT, n=4))
        async with asyncio.timeout(PATIENCE):
            while engine.stats().waiting < 1:
                await asyncio.sleep(0.005)
        with pytest.raises(openai.RateLimitError) as full:
            await sdk.completions.create(**SHORT, n=4)
        assert (full.value.status_code, full.value.code) == (429, "queue_full")
        assert int(full.value.response.headers["retry-after"]) >= 1
    assert len((await waiting).choices) == 4


async def test_interactive_requests_go_before_batch_work(engine: LocalEngine, servers: Serving) -> None:
    order: list[str] = []

    async def ask(client: httpx.AsyncClient, tier: str) -> None:
        body = {"prompt": "to be", "max_tokens": 2, "ignore_eos": True, "service_tier": tier}
        assert (await client.post("/v1/completions", json=body)).json()["service_tier"] == tier
        order.append(tier)

    async with httpx.AsyncClient(base_url=servers.http, timeout=PATIENCE) as client:
        async with busy(engine):
            tasks = []
            for count, tier in enumerate(("flex", "flex", "priority"), 1):
                tasks.append(asyncio.create_task(ask(client, tier)))
                async with asyncio.timeout(PATIENCE):
                    while engine.stats().waiting < count:
                        await asyncio.sleep(0.005)
        await asyncio.gather(*tasks)
    assert order == ["priority", "flex", "flex"]


async def cached(sdk: openai.AsyncOpenAI, prompt: str, tenant: str | None = None, **extra: Any) -> int:
    """Prompt tokens found in the cache."""
    headers = {} if tenant is None else {"X-Tenant": tenant}
    reply = await sdk.completions.create(**SHORT | {"prompt": prompt, "extra_body": extra}, extra_headers=headers)
    assert reply.usage is not None
    assert reply.usage.prompt_tokens_details is not None
    return reply.usage.prompt_tokens_details.cached_tokens or 0


async def test_warm_prompts_and_the_reset(servers: Serving, sdk: openai.AsyncOpenAI, engine: LocalEngine) -> None:
    assert engine._built.core.scheduler.cache.num_pinned == 4
    assert await cached(sdk, WARM + " there", "warm") == 16
    assert await cached(sdk, WARM + " there") == 0
    async with httpx.AsyncClient(base_url=servers.http, timeout=30) as client:
        assert (await client.post("/reset_prefix_cache")).status_code == 200
    assert await cached(sdk, WARM + " there", "warm") == 0
    assert await cached(sdk, WARM + " there", "warm") == 20
    assert engine._built.core.scheduler.cache.num_pinned == 0


async def test_prefixes_are_a_tenants_own(sdk: openai.AsyncOpenAI, servers: Serving) -> None:
    prompt = "a prompt that is asked again"
    assert [await cached(sdk, prompt, "a") for _ in range(2)] == [0, 24]
    assert await cached(sdk, prompt, "b") == 0
    assert [await cached(sdk, prompt, "a", cache_salt="s") for _ in range(2)] == [0, 24]
    async with grpc.aio.insecure_channel(servers.grpc) as channel:
        for tenant, found in (("a", 24), ("c", 0)):
            request = pb.GenerateRequest(text=prompt, stopping=pb.Stopping(max_tokens=1))
            events = [event async for event in InferenceStub(channel).Generate(request, metadata=(("x-tenant", tenant),))]
            assert events[0].started.cached_tokens == found


async def test_token_budgets(sdk: openai.AsyncOpenAI) -> None:
    free = {"service_class": "interactive_free", "ignore_eos": True}
    for extra, total in ((free, 20), (free | {"max_total_tokens": 11}, 11), (free | {"max_total_tokens": 50}, 20)):
        reply = await sdk.completions.create(**SHORT | {"max_tokens": 100, "extra_body": extra})
        assert reply.usage is not None
        assert (reply.usage.total_tokens, reply.choices[0].finish_reason) == (total, "length")
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.completions.create(**SHORT | {"extra_body": {"max_total_tokens": 5}})
    assert refused.value.param == "max_total_tokens"


async def test_what_a_tenants_pages_never_hold_is_refused(sdk: openai.AsyncOpenAI) -> None:
    """A tenth of 100 pages of 4 tokens."""
    with pytest.raises(openai.BadRequestError, match=r"kv_cap of tenant 'small', 0.1 of 100 pages of 4 tokens") as refused:
        await sdk.completions.create(**SHORT | {"prompt": "x" * 40}, extra_headers={"X-Tenant": "small"})
    assert refused.value.code == "context_length_exceeded"
    await sdk.completions.create(**SHORT | {"prompt": "x" * 38}, extra_headers={"X-Tenant": "small"})
    await sdk.completions.create(**SHORT | {"prompt": "x" * 40})


async def test_tenants_with_impossible_names(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="X-Tenant must be a string of at most 128 printable") as refused:
        await sdk.completions.create(**SHORT, extra_headers={"X-Tenant": "x" * 129})
    assert refused.value.param == "X-Tenant"
