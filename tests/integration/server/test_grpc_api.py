"""jaxserve.v1.Inference against a real server."""

import asyncio
from typing import Any, cast

import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from jaxserve.engine.events import WeightRange
from jaxserve.errors import QueueFullError
from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from jaxserve.sampling.params import SamplingParams
from tests.support.scripted import BOS, EOS, MAX_MODEL_LEN, VOCAB, ByteTokenizer, ScriptedClient


async def events_of(channel: grpc.aio.Channel, request: pb.GenerateRequest) -> list[pb.GenerateEvent]:
    return [event async for event in InferenceStub(channel).Generate(request)]


async def failure_of(channel: grpc.aio.Channel, request: pb.GenerateRequest) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await events_of(channel, request)
    return info.value


def detail(error: grpc.aio.AioRpcError, kind: Any) -> Any:
    assert error.trailing_metadata() is not None
    status = rpc_status.from_call(cast(Any, error))
    found = kind()
    assert status.details[0].Unpack(found)
    return found


def last_detail(error: grpc.aio.AioRpcError, kind: Any) -> Any:
    found = kind()
    assert rpc_status.from_call(cast(Any, error)).details[-1].Unpack(found)
    return found


def fields_at_fault(error: grpc.aio.AioRpcError) -> list[str]:
    return [violation.field for violation in detail(error, error_details_pb2.BadRequest).field_violations]


async def test_generate(channel: grpc.aio.Channel) -> None:
    events = await events_of(channel, pb.GenerateRequest(request_id="mine", text="hello"))
    assert [event.WhichOneof("event") for event in events] == ["started", *["delta"] * 5, "finished"]
    assert {event.request_id for event in events} == {"mine"}
    started, *deltas, last = events
    assert (started.started.prompt_tokens, started.started.cached_tokens, started.started.queue_time) == (5, 2, 0.25)
    assert "".join(event.delta.text for event in deltas) == "hello"
    assert [token for event in deltas for token in event.delta.token_ids] == list(b"hello")
    assert [event.delta.first_token_index for event in deltas] == list(range(5))
    assert last.finished.reason == pb.FINISH_REASON_STOP
    assert last.finished.WhichOneof("matched") is None
    assert (last.finished.usage.prompt_tokens, last.finished.usage.completion_tokens) == (5, 5)
    assert last.finished.timing.total == 1.0
    assert not last.finished.weight_versions


async def test_which_weights_tokens_are_of(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    engine.weight_versions = (WeightRange("step 1", 0, 2), WeightRange(7, 2, 5))
    *_, last = await events_of(channel, pb.GenerateRequest(text="hello"))
    assert list(last.finished.weight_versions) == [
        pb.WeightRange(name="step 1", start=0, end=2),
        pb.WeightRange(number=7, start=2, end=5),
    ]


async def test_tokens_and_chat_prompts(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    events = await events_of(channel, pb.GenerateRequest(tokens=pb.TokenIds(ids=[104, 105])))
    assert "".join(event.delta.text for event in events) == "hi"
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="yo")], continue_final_message=True)
    chat.template_arguments.update({"enable_thinking": False})
    events = await events_of(channel, pb.GenerateRequest(chat=chat))
    assert "".join(event.delta.text for event in events) == "yo"
    assert engine.arguments == {"enable_thinking": False, "add_generation_prompt": False, "continue_final_message": True}


async def test_every_parameter_reaches_the_engine(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    request = pb.GenerateRequest(
        text="hello",
        sampling=pb.Sampling(
            n=2,
            temperature=0.0,
            top_k=3,
            top_p=0.7,
            min_p=0.1,
            typical_p=0.75,
            top_n_sigma=1.5,
            max_draft_tokens=2,
            presence_penalty=0.1,
            frequency_penalty=0.2,
            repetition_penalty=1.1,
            logit_bias={7: -0.5},
            allowed_token_ids=pb.TokenIds(ids=[7]),
            seed=0,
        ),
        stopping=pb.Stopping(max_tokens=4, min_tokens=1, stop=["zz"], stop_token_ids=[9], ignore_eos=True),
        output=pb.Output(logprobs=0, prompt_logprobs=1, skip_special_tokens=False, include_stop_str_in_output=True),
    )
    await events_of(channel, request)
    assert engine.seen == [
        SamplingParams(
            n=2,
            temperature=0.0,
            top_k=3,
            top_p=0.7,
            min_p=0.1,
            typical_p=0.75,
            top_n_sigma=1.5,
            max_draft_tokens=2,
            presence_penalty=0.1,
            frequency_penalty=0.2,
            repetition_penalty=1.1,
            logit_bias={7: -0.5},
            allowed_token_ids=(7,),
            seed=0,
            max_tokens=4,
            min_tokens=1,
            stop=("zz",),
            stop_token_ids=(9,),
            ignore_eos=True,
            logprobs=0,
            prompt_logprobs=1,
            skip_special_tokens=False,
            include_stop_str_in_output=True,
        )
    ]
    await events_of(channel, pb.GenerateRequest(text="hello"))
    assert engine.seen[1] == SamplingParams(max_tokens=None)


async def test_logprobs_limits_and_stops(channel: grpc.aio.Channel) -> None:
    request = pb.GenerateRequest(text="hello", output=pb.Output(logprobs=2, prompt_logprobs=1))
    started, first, *_ = await events_of(channel, request)
    assert not started.started.prompt_logprobs[0].HasField("chosen")
    assert started.started.prompt_logprobs[1].chosen.raw == b"e"
    position = first.delta.logprobs[0]
    assert (position.chosen.token_id, position.chosen.logprob, len(position.top)) == (104, -0.5, 2)
    limited = await events_of(channel, pb.GenerateRequest(text="hello", stopping=pb.Stopping(max_tokens=2)))
    assert limited[-1].finished.reason == pb.FINISH_REASON_LENGTH
    stopped = await events_of(channel, pb.GenerateRequest(text="hello", stopping=pb.Stopping(stop=["l"])))
    assert stopped[-1].finished.stop_string == "l"


async def test_several_sequences(channel: grpc.aio.Channel) -> None:
    events = await events_of(channel, pb.GenerateRequest(text="hello", sampling=pb.Sampling(n=3)))
    for index in range(3):
        assert "".join(event.delta.text for event in events if event.index == index) == "hello"
    assert sum(event.HasField("finished") for event in events) == 3


@pytest.mark.parametrize(
    ("request_", "field", "words"),
    [
        (pb.GenerateRequest(), "prompt", "required"),
        (pb.GenerateRequest(text=""), "text", "empty"),
        (pb.GenerateRequest(tokens=pb.TokenIds()), "tokens", "empty"),
        (pb.GenerateRequest(chat=pb.Chat()), "chat.messages", "empty"),
        (
            pb.GenerateRequest(
                chat=pb.Chat(messages=[{"role": "user"}], add_generation_prompt=True, continue_final_message=True)
            ),
            "chat.add_generation_prompt",
            "continue_final_message",
        ),
        (pb.GenerateRequest(text="x" * MAX_MODEL_LEN), "text", str(MAX_MODEL_LEN)),
        (pb.GenerateRequest(tokens=pb.TokenIds(ids=[VOCAB])), "tokens", str(VOCAB)),
        (pb.GenerateRequest(text="x", sampling=pb.Sampling(temperature=-1)), "sampling.temperature", "-1"),
        (pb.GenerateRequest(text="x", sampling=pb.Sampling(temperature=float("nan"))), "sampling.temperature", "finite"),
        (pb.GenerateRequest(text="x", sampling=pb.Sampling(top_p=2)), "sampling.top_p", "2"),
        (pb.GenerateRequest(text="x", sampling=pb.Sampling(n=0)), "sampling.n", "0"),
        (pb.GenerateRequest(text="x", stopping=pb.Stopping(max_tokens=0)), "stopping.max_tokens", "0"),
        (pb.GenerateRequest(text="x", stopping=pb.Stopping(stop=["y"] * 17)), "stopping.stop", "16"),
        (pb.GenerateRequest(text="x", output=pb.Output(logprobs=99)), "output.logprobs", "99"),
    ],
)
async def test_bad_input(channel: grpc.aio.Channel, request_: pb.GenerateRequest, field: str, words: str) -> None:
    error = await failure_of(channel, request_)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    violations = detail(error, error_details_pb2.BadRequest).field_violations
    assert [violation.field for violation in violations] == [field]
    assert words in (error.details() or "")


@pytest.mark.parametrize("payload", [b"\xff\xff\xff", b"\x1a\x01\xff"], ids=["not protobuf", "text is not UTF-8"])
async def test_malformed_requests(channel: grpc.aio.Channel, payload: bytes) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await channel.unary_stream("/jaxserve.v1.Inference/Generate", None, None)(payload).read()
    assert info.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_prompts_are_cut_and_told_on_request(channel: grpc.aio.Channel) -> None:
    output = pb.Output(return_prompt_token_ids=True)
    for limit, prompt in ((3, b"llo"), (5, b"hello"), (-1, b"hello")):
        started, *_ = await events_of(channel, pb.GenerateRequest(text="hello", truncate_prompt_tokens=limit, output=output))
        assert bytes(started.started.prompt_token_ids) == prompt
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hello")])
    started, *_ = await events_of(channel, pb.GenerateRequest(chat=chat, truncate_prompt_tokens=2))
    assert (started.started.prompt_tokens, list(started.started.prompt_token_ids)) == (2, [])
    error = await failure_of(channel, pb.GenerateRequest(text="hello", truncate_prompt_tokens=0))
    assert fields_at_fault(error) == ["truncate_prompt_tokens"]


async def test_special_tokens_by_choice(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    engine.tokenizer = WithBos()
    output = pb.Output(return_prompt_token_ids=True)
    for add, prompt in ((None, [BOS, 104]), (True, [BOS, 104]), (False, [104])):
        started, *_ = await events_of(channel, pb.GenerateRequest(text="h", add_special_tokens=cast(Any, add), output=output))
        assert list(started.started.prompt_token_ids) == prompt
    error = await failure_of(channel, pb.GenerateRequest(tokens=pb.TokenIds(ids=[1]), add_special_tokens=True))
    assert fields_at_fault(error) == ["add_special_tokens"]


class WithBos(ByteTokenizer):
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [BOS] * add_special_tokens + super().encode(text)


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        (pb.GenerateRequest(text="x").SerializeToString() + b"\xf8\x7f\x01", "2047"),
        (pb.GenerateRequest(text="x").SerializeToString() + b"\x32\x03\xf8\x7f\x01", "sampling.2047"),
        (b"\x2a\x07\x0a\x05\x0a\x00\xf8\x7f\x01", "chat.messages.2047"),
    ],
)
async def test_fields_of_later_versions_are_refused(channel: grpc.aio.Channel, payload: bytes, field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await channel.unary_stream("/jaxserve.v1.Inference/Generate", None, None)(payload).read()
    assert info.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert fields_at_fault(info.value) == [field]


async def test_calls_have_a_request_id(channel: grpc.aio.Channel) -> None:
    call = InferenceStub(channel).GetModelInfo(pb.GetModelInfoRequest(), metadata=(("x-request-id", "mine"),))
    await call
    assert dict(await call.trailing_metadata())["x-request-id"] == "mine"
    error = await failure_of(channel, pb.GenerateRequest(request_id="yours", text="x" * MAX_MODEL_LEN))
    assert last_detail(error, error_details_pb2.RequestInfo).request_id == "yours"
    error = await failure_of(channel, pb.GenerateRequest(request_id="a\nb", text="x"))
    assert fields_at_fault(error) == ["request_id"]
    assert last_detail(error, error_details_pb2.RequestInfo).request_id.startswith("req-")


async def test_a_long_complaint_fits_a_status(channel: grpc.aio.Channel) -> None:
    error = await failure_of(channel, pb.GenerateRequest(text="x", model="é" * 100_000))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert last_detail(error, error_details_pb2.RequestInfo).request_id


async def test_tokenize(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    engine.tokenizer = WithBos()
    stub = InferenceStub(channel)
    reply = await stub.Tokenize(pb.TokenizeRequest(text="hi", return_token_bytes=True))
    assert (list(reply.token_ids), list(reply.token_bytes)) == ([BOS, 104, 105], [b"<s>", b"h", b"i"])
    assert reply.max_model_len == MAX_MODEL_LEN
    assert list((await stub.Tokenize(pb.TokenizeRequest(text="hi", add_special_tokens=False))).token_ids) == [104, 105]
    assert list((await stub.Tokenize(pb.TokenizeRequest(text="hi"))).token_bytes) == []
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="yo")])
    assert list((await stub.Tokenize(pb.TokenizeRequest(chat=chat))).token_ids) == [BOS, *b"yo"]
    assert engine.seen == []


async def test_detokenize(channel: grpc.aio.Channel) -> None:
    stub = InferenceStub(channel)
    assert (await stub.Detokenize(pb.DetokenizeRequest(token_ids=[104, EOS, 105]))).text == "hi"
    kept = pb.DetokenizeRequest(token_ids=[104, EOS, 255], skip_special_tokens=False)
    assert (await stub.Detokenize(kept)).text == "h</s>\ufffd"


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("Tokenize", pb.TokenizeRequest(), "prompt"),
        ("Tokenize", pb.TokenizeRequest(chat=pb.Chat()), "chat.messages"),
        ("Tokenize", pb.TokenizeRequest(chat={"messages": [{"role": "user"}]}, add_special_tokens=False), "add_special_tokens"),
        ("Detokenize", pb.DetokenizeRequest(token_ids=[1, VOCAB]), "token_ids"),
        ("Abort", pb.AbortRequest(), "request_id"),
        ("Tokenize", pb.TokenizeRequest(text="x", model="other"), "model"),
        ("Detokenize", pb.DetokenizeRequest(model="other"), "model"),
    ],
)
async def test_bad_input_of_the_smaller_methods(channel: grpc.aio.Channel, method: str, request_: Any, field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await getattr(InferenceStub(channel), method)(request_)
    assert info.value.code() is (grpc.StatusCode.NOT_FOUND if field == "model" else grpc.StatusCode.INVALID_ARGUMENT)
    assert fields_at_fault(info.value) == [field]


async def test_abort(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    stub = InferenceStub(channel)
    engine.delay = 0.01
    call = stub.Generate(pb.GenerateRequest(request_id="mine", text="x" * 200))
    await call.read()
    assert not (await stub.Abort(pb.AbortRequest(request_id="yours"))).aborted
    assert (await stub.Abort(pb.AbortRequest(request_id="mine"))).aborted
    call.cancel()


async def test_unknown_model(channel: grpc.aio.Channel) -> None:
    error = await failure_of(channel, pb.GenerateRequest(text="x", model="other"))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.aio.AioRpcError, match="other"):
        await InferenceStub(channel).GetModelInfo(pb.GetModelInfoRequest(model="other"))


async def test_model_info(channel: grpc.aio.Channel) -> None:
    info = await InferenceStub(channel).GetModelInfo(pb.GetModelInfoRequest())
    assert (info.name, info.max_model_len, info.vocab_size, info.dtype) == ("echo", MAX_MODEL_LEN, VOCAB, "float32")


async def test_full_queue_says_when_to_retry(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    engine.failure = QueueFullError("the queue is full", retry_after=2.5)
    error = await failure_of(channel, pb.GenerateRequest(text="x"))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert 2500 <= detail(error, error_details_pb2.RetryInfo).retry_delay.ToMilliseconds() <= 3500


async def test_unexpected_exceptions_keep_their_secrets(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    engine.failure = RuntimeError("a secret")
    error = await failure_of(channel, pb.GenerateRequest(text="x"))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in str(error)


async def test_cancelling_a_call_aborts(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    engine.delay = 0.01
    call = InferenceStub(channel).Generate(pb.GenerateRequest(text="x" * 200))
    await call.read()
    assert len(engine.active) == 1
    call.cancel()
    await until_idle(engine)
    assert len(engine.aborted) == 1


async def test_a_deadline_aborts(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    engine.delay = 60.0
    with pytest.raises(grpc.aio.AioRpcError) as info:
        async for _ in InferenceStub(channel).Generate(pb.GenerateRequest(text="x"), timeout=0.2):
            pass
    assert info.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until_idle(engine)
    assert len(engine.aborted) == 1


async def test_the_deadline_of_a_call_bounds_its_request(channel: grpc.aio.Channel, engine: ScriptedClient) -> None:
    stub = InferenceStub(channel)
    for timeout in (None, 7.0, 500.0):
        await stub.Generate(pb.GenerateRequest(text="x", timeout=timeout), timeout=100.0).read()
    asked, shorter, longer = (options.timeout for options in engine.options)
    assert 50.0 < (asked or 0.0) <= 101.0  # gRPC rounds up on the wire, from 100 seconds on to whole ones
    assert shorter == 7.0
    assert 50.0 < (longer or 0.0) <= 101.0


async def until_idle(engine: ScriptedClient) -> None:
    async with asyncio.timeout(60):
        while engine.active:
            await asyncio.sleep(0.005)


async def test_reflection(channel: grpc.aio.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    reply = await call.read()
    assert {service.name for service in reply.list_services_response.service} == {
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "inference.GRPCInferenceService",
        "vllm.grpc.engine.VllmEngine",
        "jaxserve.v1.Admin",
        "jaxserve.v1.Inference",
    }
