"""vllm.grpc.engine.VllmEngine against real servers, with stubs of our own; test_smg.py has the gateway it is for."""

from __future__ import annotations

import asyncio
import hashlib
import io
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from jaxserve.engine.client import EngineStats
from jaxserve.proto import smg_common_pb2 as common
from jaxserve.proto import vllm_engine_pb2 as pb
from jaxserve.proto.vllm_engine_pb2_grpc import VllmEngineStub
from jaxserve.sampling.params import SamplingParams
from tests.support.scripted import EOS, MAX_MODEL_LEN, VOCAB, ScriptedClient
from tests.support.tiny_checkpoint import write_tiny_checkpoint


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> VllmEngineStub:
    return VllmEngineStub(channel)


def request(text: str = "hello", *, stream: bool = False, **sampling: Any) -> pb.GenerateRequest:
    tokens = pb.TokenizedInput(original_text="whatever", input_ids=text.encode())
    return pb.GenerateRequest(request_id="mine", tokenized=tokens, sampling_params=sampling, stream=stream)


async def responses(stub: VllmEngineStub, made: pb.GenerateRequest) -> list[pb.GenerateResponse]:
    return [response async for response in stub.Generate(made)]


async def test_a_whole_answer(stub: VllmEngineStub, engine: ScriptedClient) -> None:
    (response,) = await responses(stub, request())
    whole = response.complete
    assert bytes(whole.output_ids) == b"hello"
    assert (whole.finish_reason, whole.prompt_tokens, whole.completion_tokens, whole.cached_tokens) == ("stop", 5, 5, 2)
    assert not whole.HasField("output_logprobs")
    assert not whole.HasField("input_logprobs")
    assert whole.WhichOneof("matched_stop") is None
    assert engine.seen == [SamplingParams(max_tokens=None, skip_special_tokens=False)]  # proto3's false, and zeros that mean 1


async def test_streamed(stub: VllmEngineStub) -> None:
    *chunks, last = await responses(stub, request(stream=True))
    assert b"".join(bytes(response.chunk.token_ids) for response in chunks) == b"hello"
    assert {(one.chunk.prompt_tokens, one.chunk.completion_tokens, one.chunk.cached_tokens) for one in chunks} == {(5, 1, 2)}
    assert (list(last.complete.output_ids), last.complete.finish_reason) == ([], "stop")
    assert (last.complete.prompt_tokens, last.complete.completion_tokens) == (5, 5)


@pytest.mark.parametrize("stream", [False, True])
async def test_several_sequences_and_logprobs(stub: VllmEngineStub, stream: bool) -> None:
    found = await responses(stub, request("hey", stream=stream, n=2, logprobs=1, prompt_logprobs=1))
    for index in range(2):
        parts = [one.chunk if one.HasField("chunk") else one.complete for one in found]
        mine = [part for part in parts if part.index == index]
        assert [len(part.input_logprobs.token_ids) for part in mine] == [3, *[0] * (len(mine) - 1)]
        prompt = mine[0].input_logprobs
        assert [value.HasField("value") for value in prompt.token_logprobs] == [False, True, True]
        assert [len(top.token_ids) for top in prompt.top_logprobs] == [0, 1, 1]
        assert bytes(token for part in mine for token in part.output_logprobs.token_ids) == b"hey"
        assert [value for part in mine for value in part.output_logprobs.token_logprobs] == [-0.5] * 3
        assert [list(top.values) for part in mine for top in part.output_logprobs.top_logprobs] == [[-0.5]] * 3


async def test_every_parameter_reaches_the_engine(stub: VllmEngineStub, engine: ScriptedClient) -> None:
    sampling: dict[str, Any] = {
        "n": 2,
        "max_tokens": 4,
        "min_tokens": 1,
        "temperature": 0.0,
        "top_k": 3,
        "top_p": 0.5,
        "min_p": 0.25,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "repetition_penalty": 1.5,
        "seed": 0,
        "logprobs": 0,
        "prompt_logprobs": 1,
        "stop": ["zz"],
        "stop_token_ids": [9],
        "logit_bias": {7: -0.5},
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": True,
    }
    await responses(stub, request(**sampling, spaces_between_special_tokens=True))
    (seen,) = engine.seen
    assert seen == SamplingParams(**{**sampling, "stop": ("zz",), "stop_token_ids": (9,)})


async def test_prompts(stub: VllmEngineStub) -> None:
    (whole,) = await responses(stub, pb.GenerateRequest(text="yo"))
    assert bytes(whole.complete.output_ids) == b"yo"
    for made in (
        request(truncate_prompt_tokens=2),
        pb.GenerateRequest(text="hello", sampling_params={"truncate_prompt_tokens": 2}),
    ):
        (whole,) = await responses(stub, made)
        assert bytes(whole.complete.output_ids) == b"lo"


async def test_what_matched(stub: VllmEngineStub) -> None:
    (whole,) = await responses(stub, request(stop=["l"]))
    assert whole.complete.matched_stop_str == "l"
    (whole,) = await responses(stub, request(max_tokens=2))
    assert whole.complete.finish_reason == "length"


TOKENS = pb.TokenizedInput(input_ids=[1])


@pytest.mark.parametrize(
    ("made", "field"),
    [
        (pb.GenerateRequest(), "input"),
        (pb.GenerateRequest(text=""), "text"),
        (request(""), "tokenized.input_ids"),
        (pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=[VOCAB])), "tokenized.input_ids"),
        (pb.GenerateRequest(text="x" * MAX_MODEL_LEN), "text"),
        (pb.GenerateRequest(request_id="a\nb", tokenized=TOKENS), "request_id"),
        (pb.GenerateRequest(tokenized=TOKENS, mm_inputs={}), "mm_inputs"),
        (pb.GenerateRequest(tokenized=TOKENS, extra_mm_inputs=[{}]), "extra_mm_inputs"),
        (pb.GenerateRequest(tokenized=TOKENS, media_refs={}), "media_refs"),
        (pb.GenerateRequest(tokenized=TOKENS, kv_transfer_params={}), "kv_transfer_params"),
        (pb.GenerateRequest(tokenized=TOKENS, kv_transfer_params_json="{}"), "kv_transfer_params_json"),
        (pb.GenerateRequest(tokenized=TOKENS, data_parallel_rank=1), "data_parallel_rank"),
        (request(temperature=-1), "sampling_params.temperature"),
        (request(top_p=7), "sampling_params.top_p"),
        (request(logprobs=-1), "sampling_params.logprobs"),
        (request(logit_bias={-1: 1}), "sampling_params.logit_bias"),
        (request(truncate_prompt_tokens=-2), "sampling_params.truncate_prompt_tokens"),
        (request(regex="a" * 65_537), "sampling_params.regex"),
        (request(choice={"choices": ["a"] * 10_001}), "sampling_params.choice"),
    ],
)
async def test_bad_input(stub: VllmEngineStub, engine: ScriptedClient, made: pb.GenerateRequest, field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await responses(stub, made)
    found = error_details_pb2.BadRequest()
    assert rpc_status.from_call(cast(Any, info.value)).details[0].Unpack(found)
    assert (info.value.code(), found.field_violations[0].field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
    assert engine.seen == []


async def test_the_only_rank_may_be_named(stub: VllmEngineStub) -> None:
    made = request()
    made.data_parallel_rank = 0
    assert len(await responses(stub, made)) == 1
    assert (await stub.GetLoads(pb.GetLoadsRequest(dp_rank=0))).dp_rank_count == 1
    with pytest.raises(grpc.aio.AioRpcError, match="dp_rank"):
        await stub.GetLoads(pb.GetLoadsRequest(dp_rank=1))


async def test_deadline_and_tenant(stub: VllmEngineStub, engine: ScriptedClient) -> None:
    await stub.Generate(request(), timeout=100.0, metadata=(("x-tenant", "acme"),)).read()
    (options,) = engine.options
    assert options.tenant == "acme"
    assert 50.0 < (options.timeout or 0.0) <= 101.0  # gRPC rounds up on the wire, from 100 seconds on to whole ones


async def test_abort(stub: VllmEngineStub, engine: ScriptedClient) -> None:
    aborted: list[str] = []

    async def abort(request_id: str) -> bool:
        aborted.append(request_id)
        return False

    engine.abort = abort  # type: ignore[method-assign]
    await stub.Abort(pb.AbortRequest(request_ids=["a", "b"]))
    assert aborted == ["a", "b"]


async def test_cancelling_a_call_aborts(stub: VllmEngineStub, engine: ScriptedClient) -> None:
    engine.delay = 0.01
    call = stub.Generate(request("x" * 200, stream=True))
    await call.read()
    assert engine.active == {"mine"}
    call.cancel()
    async with asyncio.timeout(60):
        while engine.active:
            await asyncio.sleep(0.005)
    assert engine.aborted == ["mine"]


async def test_what_it_tells(stub: VllmEngineStub, engine: ScriptedClient) -> None:
    engine.stats = lambda: EngineStats(3, 2, 40, 10, 0, 6, 0, 0, 0, 0, 0, 100, 25)  # type: ignore[method-assign]
    info = await stub.GetModelInfo(pb.GetModelInfoRequest())
    assert (info.served_model_name, info.is_generation, info.supports_vision) == ("echo", True, False)
    assert (info.max_context_length, info.vocab_size, list(info.eos_token_ids)) == (MAX_MODEL_LEN, VOCAB, [EOS])
    server = await stub.GetServerInfo(pb.GetServerInfoRequest())
    assert (server.active_requests, server.is_paused, server.data_parallel_size) == (6, False, 1)
    (load,) = (await stub.GetLoads(pb.GetLoadsRequest())).loads
    assert (load.num_running_reqs, load.num_waiting_reqs, load.num_total_reqs) == (3, 2, 5)
    assert (load.token_usage, load.cache_hit_rate) == (0.75, 0.25)
    assert (await stub.HealthCheck(pb.HealthCheckRequest())).healthy
    engine.draining = True
    reply = await stub.HealthCheck(pb.HealthCheckRequest())
    assert (reply.healthy, reply.message) == (False, "the server is shutting down")
    assert (await stub.GetServerInfo(pb.GetServerInfoRequest())).is_paused


async def test_the_cache_is_flushed(stub: VllmEngineStub, engine: ScriptedClient) -> None:
    assert (await stub.FlushCache(common.FlushCacheRequest())).success
    assert engine.resets == 1


async def test_the_tokenizer_comes_in_pieces(stub: VllmEngineStub, engine: ScriptedClient, tmp_path: Path) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await stub.GetTokenizer(common.GetTokenizerRequest()).read()
    assert info.value.code() is grpc.StatusCode.INTERNAL
    write_tiny_checkpoint(tmp_path)
    engine.model = replace(engine.model, tokenizer=str(tmp_path))
    (tmp_path / "merges.txt").write_bytes(noise(150_000))
    pieces = [piece async for piece in stub.GetTokenizer(common.GetTokenizerRequest())]
    archive = b"".join(piece.data for piece in pieces)
    assert [bool(piece.sha256) for piece in pieces] == [False, False, True]
    assert pieces[-1].sha256 == hashlib.sha256(archive).hexdigest()
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        assert files.read("tokenizer.json") == (tmp_path / "tokenizer.json").read_bytes()
        assert files.read("chat_template.jinja").decode() == engine.chat_template
    assert (await stub.GetModelInfo(pb.GetModelInfoRequest())).tokenizer_path == str(tmp_path)


def noise(size: int) -> bytes:
    """Bytes that do not compress."""
    return b"".join(hashlib.sha256(bytes([i % 256, i // 256])).digest() for i in range(size // 32))


@pytest.mark.parametrize("method", ["Embed", "SubscribeKvEvents", "StartProfile"])
async def test_what_is_not_here(channel: grpc.aio.Channel, method: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await channel.unary_unary(f"/vllm.grpc.engine.VllmEngine/{method}", None, None)(b"")
    assert info.value.code() is grpc.StatusCode.UNIMPLEMENTED
