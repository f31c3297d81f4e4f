"""inference.GRPCInferenceService against real servers, with stubs of our own; test_tritonclient.py has Triton's client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from jaxserve.errors import QueueFullError
from jaxserve.proto import kserve_pb2 as pb
from jaxserve.proto.kserve_pb2_grpc import GRPCInferenceServiceStub
from jaxserve.sampling.params import SamplingParams
from jaxserve.types import RequestOptions, ServiceClass
from server.grpc.kserve.stream import MAX_REQUESTS
from server.kserve.tensors import texts
from tests.support.scripted import ScriptedClient
from tests.support.serving import serving

EVERY_OUTPUT = ["text_output", "finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens"]


def request(text: str | None = "hello", sampling: Any = None, *, id: str = "", **flags: bool) -> pb.ModelInferRequest:
    made = pb.ModelInferRequest(model_name="echo", id=id)
    given: dict[str, str | bool] = {} if text is None else {"text_input": text}
    if sampling is not None:
        given["sampling_parameters"] = sampling if isinstance(sampling, str) else json.dumps(sampling)
    for name, value in {**given, **flags}.items():
        made.inputs.add(name=name, datatype="BYTES" if isinstance(value, str) else "BOOL", shape=[1])
        made.raw_input_contents.append(texts([value]) if isinstance(value, str) else bytes([value]))
    return made


def elements(raw: bytes) -> list[bytes]:
    found = []
    while raw:
        end = 4 + int.from_bytes(raw[:4], "little")
        found.append(raw[4:end])
        raw = raw[end:]
    return found


def outputs(reply: pb.ModelInferResponse) -> dict[str, Any]:
    assert len(reply.outputs) == len(reply.raw_output_contents)
    return {output.name: raw for output, raw in zip(reply.outputs, reply.raw_output_contents, strict=True)}


def text_of(reply: pb.ModelInferResponse) -> list[bytes]:
    return elements(outputs(reply)["text_output"])


async def failure(channel: grpc.aio.Channel, made: pb.ModelInferRequest) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await GRPCInferenceServiceStub(channel).ModelInfer(made)
    found = error_details_pb2.BadRequest()
    status = rpc_status.from_call(cast(Any, info.value))
    return info.value.code(), found.field_violations[0].field if status.details[0].Unpack(found) else None


async def conversation(channel: grpc.aio.Channel, *requests: pb.ModelInferRequest) -> list[pb.ModelStreamInferResponse]:
    async def send() -> AsyncIterator[pb.ModelInferRequest]:
        for one in requests:
            yield one

    return [reply async for reply in GRPCInferenceServiceStub(channel).ModelStreamInfer(send())]


async def test_a_whole_answer(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    reply = await GRPCInferenceServiceStub(channel).ModelInfer(request(id="mine"))
    assert (reply.id, reply.model_name, reply.model_version) == ("mine", "echo", "1")
    assert [output.name for output in reply.outputs] == ["text_output"]
    assert text_of(reply) == [b"hellohello"]  # the prompt goes first, as vLLM's backend has it
    assert reply.parameters["triton_final_response"].bool_param
    assert engine.seen == [SamplingParams(max_tokens=16)]
    reply = await GRPCInferenceServiceStub(channel).ModelInfer(request(exclude_input_in_output=True))
    assert text_of(reply) == [b"hello"]


async def test_contents_that_are_not_raw(channel: grpc.aio.Channel) -> None:
    made = pb.ModelInferRequest(model_name="echo")
    made.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"yo")
    made.inputs.add(name="exclude_input_in_output", datatype="BOOL", shape=[1]).contents.bool_contents.append(True)
    assert text_of(await GRPCInferenceServiceStub(channel).ModelInfer(made)) == [b"yo"]


async def test_every_output(channel: grpc.aio.Channel) -> None:
    flags: dict[str, Any] = {f"return_{name}": True for name in EVERY_OUTPUT[1:]}
    sampling = {"n": 2, "logprobs": 1, "max_tokens": 3}
    reply = await GRPCInferenceServiceStub(channel).ModelInfer(request("hello", sampling, exclude_input_in_output=True, **flags))
    assert [(one.name, list(one.shape)) for one in reply.outputs] == [
        (name, [1 if name == "num_input_tokens" else 2]) for name in EVERY_OUTPUT
    ]
    found = outputs(reply)
    assert text_of(reply) == [b"hel", b"hel"]
    assert elements(found["finish_reason"]) == [b"length", b"length"]
    assert found["cumulative_logprob"] == 2 * b"\0\0\xc0\xbf"  # -1.5
    assert found["num_input_tokens"] == b"\5\0\0\0"
    assert found["num_output_tokens"] == b"\3\0\0\0\3\0\0\0"
    first, second = map(json.loads, elements(found["logprobs"]))
    assert first == second
    assert [list(position) for position in first] == [["104"], ["101"], ["108"]]
    assert first[0]["104"] == {"logprob": -0.5, "rank": 1, "decoded_token": "h"}


async def test_outputs_are_chosen_by_name(channel: grpc.aio.Channel) -> None:
    made = request(return_num_input_tokens=True)
    made.outputs.add(name="finish_reason")
    reply = await GRPCInferenceServiceStub(channel).ModelInfer(made)
    assert [output.name for output in reply.outputs] == ["finish_reason", "num_input_tokens"]


async def test_every_parameter_reaches_the_engine(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    sampling: dict[str, Any] = {
        "n": "2",
        "max_tokens": "4",
        "min_tokens": 1,
        "top_k": 3,
        "seed": "7",
        "logprobs": 1,
        "temperature": "0.5",
        "top_p": 0.7,
        "min_p": 0.1,
        "typical_p": "0.75",
        "top_n_sigma": 1.5,
        "max_draft_tokens": "2",
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.1,
        "ignore_eos": "true",
        "include_stop_str_in_output": True,
        "skip_special_tokens": "False",
        "stop": ["zz"],
        "stop_token_ids": [9],
        "allowed_token_ids": [7],
        "logit_bias": {"7": -0.5},
    }
    await GRPCInferenceServiceStub(channel).ModelInfer(request("hello", {**sampling, "bad": None}))
    wanted = SamplingParams(
        n=2,
        max_tokens=4,
        min_tokens=1,
        top_k=3,
        seed=7,
        logprobs=1,
        temperature=0.5,
        top_p=0.7,
        min_p=0.1,
        typical_p=0.75,
        top_n_sigma=1.5,
        max_draft_tokens=2,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        repetition_penalty=1.1,
        ignore_eos=True,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        stop=("zz",),
        stop_token_ids=(9,),
        allowed_token_ids=(7,),
        logit_bias={7: -0.5},
    )
    made = request("hello")
    for name, value in sampling.items():
        if isinstance(value, list | dict):
            continue
        parameter = made.parameters[name]
        if isinstance(value, bool):
            parameter.bool_param = value
        elif isinstance(value, int):
            parameter.int64_param = value
        elif isinstance(value, float):
            parameter.double_param = value
        else:
            parameter.string_param = value
    made.parameters["stop"].string_param = "zz"
    await GRPCInferenceServiceStub(channel).ModelInfer(made)
    assert engine.seen[0] == wanted
    assert engine.seen[1].stop == ("zz",)
    assert engine.seen[1].temperature == 0.5
    assert engine.seen[1].skip_special_tokens is False


async def test_options(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    made = request("hello")
    made.parameters["service_class"].string_param = "batch"
    made.parameters["cache_salt"].string_param = "pepper"
    made.parameters["queue_timeout"].double_param = 1.5
    made.parameters["max_total_tokens"].int64_param = 77
    made.parameters["timeout"].int64_param = 2_500_000  # microseconds, as Triton counts
    made.parameters["priority"].uint64_param = 0
    made.parameters["triton_enable_empty_final_response"].bool_param = True
    await GRPCInferenceServiceStub(channel).ModelInfer(made, metadata=(("x-tenant", "acme"),))
    assert engine.options == [
        RequestOptions(
            tenant="acme",
            service_class=ServiceClass.BATCH,
            queue_timeout=1.5,
            timeout=2.5,
            max_total_tokens=77,
            cache_salt="pepper",
        )
    ]


def with_parameter(name: str, **value: Any) -> pb.ModelInferRequest:
    made = request()
    made.parameters[name].CopyFrom(pb.InferParameter(**value))
    return made


def with_output(name: str) -> pb.ModelInferRequest:
    made = request()
    made.outputs.add(name=name)
    return made


@pytest.mark.parametrize(
    ("made", "field"),
    [
        (request(None), "text_input"),
        (request(""), "text_input"),
        (request(stream=True), "stream"),
        (request(image=True), "inputs"),
        (request("hello", "{"), "sampling_parameters"),
        (request("hello", "[]"), "sampling_parameters"),
        (request("hello", "[" * 100_000), "sampling_parameters"),
        (request("hello", {"n": 10**400}), "sampling_parameters"),
        (request("hello", {"temperature": "hot"}), "sampling_parameters.temperature"),
        (request("hello", {"temperature": -1}), "sampling_parameters.temperature"),
        (request("hello", '{"temperature": NaN}'), "sampling_parameters"),
        (request("hello", {"temperature": {}}), "sampling_parameters.temperature"),
        (request("hello", {"ignore_eos": "maybe"}), "sampling_parameters.ignore_eos"),
        (request("hello", {"top_k": "1.5"}), "sampling_parameters.top_k"),
        (request("hello", {"logit_bias": []}), "sampling_parameters.logit_bias"),
        (request("hello", {"logit_bias": {"9" * 5000: 1}}), "sampling_parameters.logit_bias"),
        (request("hello", {"beam_width": 3}), "sampling_parameters.beam_width"),
        (request("hello", {"prompt_logprobs": 1}), "sampling_parameters.prompt_logprobs"),
        (with_parameter("temperature", double_param=-1.0), "parameters.temperature"),
        (with_parameter("temperature"), "parameters.temperature"),
        (with_parameter("sequence_id", int64_param=3), "parameters.sequence_id"),
        (with_parameter("priority", uint64_param=3), "parameters.priority"),
        (with_parameter("timeout", int64_param=0), "parameters.timeout"),
        (with_parameter("timeout", string_param="1"), "parameters.timeout"),
        (with_parameter("cache_salt", bool_param=True), "parameters.cache_salt"),
        (with_parameter("queue_timeout", string_param="1"), "parameters.queue_timeout"),
        (with_parameter("max_total_tokens", bool_param=True), "parameters.max_total_tokens"),
        (with_output("nothing"), "outputs"),
        (pb.ModelInferRequest(model_name="echo", raw_input_contents=[b"x"]), "raw_input_contents"),
        (request("x" * 600), "text_input"),
    ],
)
async def test_bad_input(channel: grpc.aio.Channel, engine: ScriptedClient, made: pb.ModelInferRequest, field: str) -> None:
    assert await failure(channel, made) == (grpc.StatusCode.INVALID_ARGUMENT, field)
    assert engine.seen == []


async def test_a_parameter_is_given_once(channel: grpc.aio.Channel) -> None:
    made = request("hello", {"temperature": 1})
    made.parameters["temperature"].double_param = 1.0
    assert await failure(channel, made) == (grpc.StatusCode.INVALID_ARGUMENT, "parameters.temperature")


async def test_other_models_and_versions(channel: grpc.aio.Channel) -> None:
    for field in ("model_name", "model_version"):
        made = request()
        setattr(made, field, "7")
        assert await failure(channel, made) == (grpc.StatusCode.NOT_FOUND, field.replace("_name", ""))


async def test_streamed(channel: grpc.aio.Channel) -> None:
    made = request("hello", {"n": 2}, id="mine", stream=True, return_finish_reason=True, return_num_output_tokens=True)
    replies = [reply.infer_response for reply in await conversation(channel, made)]
    assert {reply.id for reply in replies} == {"mine"}
    for index in range(2):
        assert b"".join(text_of(reply)[index] for reply in replies) == b"hello"
    assert [reply.parameters["triton_final_response"].bool_param for reply in replies] == [False] * (len(replies) - 1) + [True]
    *_, before, last = (elements(outputs(reply)["finish_reason"]) for reply in replies)
    assert (before, last) == ([b"stop", b"None"], [b"stop", b"stop"])
    assert sum(outputs(reply)["num_output_tokens"][0] for reply in replies) == 5


async def test_logprobs_need_no_parameter_and_come_piece_by_piece(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    made = request("hey", stream=True, return_logprobs=True, return_cumulative_logprob=True)
    *replies, last = [outputs(reply.infer_response) for reply in await conversation(channel, made)]
    assert engine.seen[0].logprobs == 0
    assert [list(map(len, map(json.loads, elements(reply["logprobs"])))) for reply in replies] == [[1]] * 3
    assert json.loads(elements(last["logprobs"])[0]) == []
    assert last["cumulative_logprob"] == b"\0\0\xc0\xbf"  # -1.5


async def test_requests_of_a_stream_go_on_where_one_fails(channel: grpc.aio.Channel) -> None:
    made = [
        request("hello", id="good", stream=True),
        request("hello", {"top_p": 7}, id="bad", stream=True),
        request("hello", id="whole"),
    ]
    replies = await conversation(channel, *made)
    (failed,) = (reply for reply in replies if reply.error_message)
    assert failed.error_message == "sampling_parameters.top_p must be in (0, 1], got 7"
    assert failed.infer_response.id == "bad"
    assert failed.infer_response.parameters["error_code"].string_param == "invalid_request"
    good = [text_of(reply.infer_response)[0] for reply in replies if reply.infer_response.id == "good"]
    assert b"".join(good) == b"hello"
    assert [text_of(reply.infer_response) for reply in replies if reply.infer_response.id == "whole"] == [[b"hellohello"]]


async def test_garbage_in_a_stream(channel: grpc.aio.Channel) -> None:
    async def send() -> AsyncIterator[bytes]:
        yield b"\xff\xff"
        yield request(id="good").SerializeToString()

    call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer", None, None)(send())
    replies = [pb.ModelStreamInferResponse.FromString(reply) async for reply in call]
    assert sorted(reply.error_message for reply in replies) == ["", "the request is not a valid inference.ModelInferRequest"]


async def test_failures_of_the_engine_keep_their_secrets(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    engine.failure = RuntimeError("a secret")
    (reply,) = await conversation(channel, request())
    assert reply.infer_response.parameters["error_code"].string_param == "internal_error"
    assert "secret" not in str(reply)
    engine.failure = QueueFullError("the queue is full")
    assert await failure(channel, request()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, None)


async def test_cancelling_a_stream_aborts_all_of_it(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    engine.delay = 0.01
    more = asyncio.Event()

    async def send() -> AsyncIterator[pb.ModelInferRequest]:
        for _ in range(3):
            yield request("x" * 200, {"max_tokens": 200}, stream=True)
        await more.wait()

    call = GRPCInferenceServiceStub(channel).ModelStreamInfer(send())
    async with asyncio.timeout(60):
        while len(engine.active) < 3:
            await call.read()
        call.cancel()
        while engine.active:
            await asyncio.sleep(0.005)
    assert len(engine.aborted) == 3


async def test_a_stream_runs_so_many_requests_at_once(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    engine.delay = 3600.0
    call = GRPCInferenceServiceStub(channel).ModelStreamInfer(request() for _ in range(MAX_REQUESTS + 20))
    async with asyncio.timeout(20):
        while len(engine.active) < MAX_REQUESTS:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert len(engine.options) == MAX_REQUESTS
        call.cancel()
        while engine.active:
            await asyncio.sleep(0.01)
    assert len(engine.aborted) == MAX_REQUESTS


async def test_requests_of_a_stream_are_billed_one_by_one(tmp_path: Path) -> None:
    log = tmp_path / "usage.jsonl"
    async with serving(ScriptedClient(), usage_log=str(log)) as servers, grpc.aio.insecure_channel(servers.grpc) as channel:
        await conversation(channel, request("hello", stream=True), request("hey", {"n": 2}), request("x", {"top_p": 7}))
    assert bills(log) == [(5, ["stop"]), (6, ["stop", "stop"])]


async def test_what_a_broken_stream_did_not_hand_over_is_not_billed(tmp_path: Path) -> None:
    engine, log = ScriptedClient(delay=0.005), tmp_path / "usage.jsonl"
    async with serving(engine, usage_log=str(log)) as servers, grpc.aio.insecure_channel(servers.grpc) as channel:
        made = [request("x" * 200, {"max_tokens": 200}, stream=True), request("x" * 200, {"max_tokens": 200})]
        call = GRPCInferenceServiceStub(channel).ModelStreamInfer(iter(made))
        for _ in range(50):
            await call.read()
        call.cancel()
    (whole, whole_ends), (streamed, streamed_ends) = bills(log)
    assert (whole, whole_ends) == (0, ["disconnected"])
    assert 49 <= streamed < 200
    assert streamed_ends == ["disconnected"]


def bills(log: Path) -> list[tuple[int, list[str]]]:
    """Tokens of each request, fewest first, and how its sequences ended."""
    events = [json.loads(line) for line in log.read_text().splitlines()]
    return sorted(bill(events, name) for name in {event["completion_id"] for event in events})


def bill(events: list[dict[str, Any]], name: str) -> tuple[int, list[str]]:
    """Tokens of one request, and how its sequences ended."""
    mine = [event for event in events if event["completion_id"] == name]
    return sum(event.get("completion_tokens", 0) for event in mine), [event["reason"] for event in mine if event.get("final")]


async def test_readiness_and_metadata(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    stub = GRPCInferenceServiceStub(channel)
    assert (await stub.ServerMetadata(pb.ServerMetadataRequest())).name == "jaxserve"
    metadata = await stub.ModelMetadata(pb.ModelMetadataRequest(name="echo"))
    assert (metadata.name, list(metadata.versions), metadata.platform) == ("echo", ["1"], "jaxserve")
    assert {(one.name, one.datatype) for one in metadata.inputs} > {("text_input", "BYTES"), ("stream", "BOOL")}
    assert [one.name for one in metadata.outputs] == EVERY_OUTPUT
    with pytest.raises(grpc.aio.AioRpcError, match="7"):
        await stub.ModelMetadata(pb.ModelMetadataRequest(name="echo", version="7"))
    for draining in (False, True):
        engine.draining = draining
        assert (await stub.ServerLive(pb.ServerLiveRequest())).live
        assert (await stub.ServerReady(pb.ServerReadyRequest())).ready is not draining
        assert (await stub.ModelReady(pb.ModelReadyRequest(name="echo"))).ready is not draining
        assert not (await stub.ModelReady(pb.ModelReadyRequest(name="other"))).ready
        assert not (await stub.ModelReady(pb.ModelReadyRequest(name="echo", version="7"))).ready
