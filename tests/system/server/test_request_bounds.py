"""What one request may take, asked of a whole server as processes: what is more is refused at once, and by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest

from jaxserve.engine.bounds import MAX_MESSAGES
from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto import kserve_pb2 as kserve
from jaxserve.proto import vllm_engine_pb2 as vllm
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from jaxserve.proto.kserve_pb2_grpc import GRPCInferenceServiceStub
from jaxserve.proto.vllm_engine_pb2_grpc import VllmEngineStub
from jaxserve.sampling.params import MAX_LISTED_IDS, MAX_STOP_CHARS
from server.http.failures import PIECE_BYTES
from server.json_values import MAX_VALUES
from tests.support.hash_engine import CONTEXT
from tests.support.hash_server import FRONT_END, HashServer, hash_server

QUEUE = 200
LONGEST_TOKEN = len("<|assistant|>")  # of the tiny checkpoint, whose other tokens are bytes
TEXT_BYTES = (CONTEXT + 1) * LONGEST_TOKEN
MUCH = 3 * 2**20
CHAT = [{"role": "user", "content": "hi"}]
TOO_LONG = "x" * MUCH


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HashServer]:
    with hash_server(tmp_path_factory.mktemp("bounds"), max_waiting=QUEUE, max_logprob_values=10_000) as running:
        yield running


@pytest.fixture(scope="module")
def channel(server: HashServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.grpc) as channel:
        yield channel


# What is sent: a path, a body, and what the refusal names: the field, the value and the bound.
REFUSED: dict[str, tuple[str, dict[str, Any], str, tuple[int, ...]]] = {
    "stop strings": (
        "/v1/completions",
        {"prompt": "hi", "stop": [f"{n}" + "x" * 60_000 for n in range(10)], "n": 128},
        "stop",
        (MAX_STOP_CHARS, 600_010),
    ),
    "stop sequences": (
        "/v1/messages",
        {"messages": CHAT, "max_tokens": 4, "stop_sequences": ["x" * 5000]},
        "stop_sequences",
        (MAX_STOP_CHARS, 5000),
    ),
    "log-probabilities of many prompts": (
        "/v1/completions",
        {"prompt": ["word " * 40] * 100, "prompt_logprobs": 20, "max_tokens": 1},
        "prompt_logprobs",
        (420_000, 10_000),
    ),
    "log-probabilities of echoes": (
        "/v1/completions",
        {"prompt": [[5] * 100] * 100, "echo": True, "logprobs": 4, "max_tokens": 1},
        "prompt_logprobs",
        (50_500, 10_000),
    ),
    "log-probabilities of many outputs": (
        "/v1/chat/completions",
        {"messages": CHAT, "logprobs": True, "top_logprobs": 20, "n": 100, "max_tokens": 200},
        "top_logprobs",
        (420_000, 10_000),
    ),
    "a long text": ("/v1/completions", {"prompt": TOO_LONG}, "prompt", (MUCH, TEXT_BYTES, CONTEXT)),
    "a long text without BOS": ("/v1/completions", {"prompt": TOO_LONG, "add_special_tokens": False}, "prompt", (MUCH,)),
    "one of several texts": ("/v1/completions", {"prompt": ["hi"] * 50 + [TOO_LONG]}, "prompt", (MUCH, TEXT_BYTES)),
    "many token ids": ("/v1/completions", {"prompt": [5] * 100_000}, "prompt", (100_000, CONTEXT)),
    "a long message": ("/v1/chat/completions", {"messages": [{"role": "user", "content": TOO_LONG}]}, "messages", (MUCH,)),
    "a long rendered chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "x" * 2 * TEXT_BYTES}]},
        "messages",
        (TEXT_BYTES,),
    ),
    "many messages": ("/v1/chat/completions", {"messages": CHAT * 5000}, "messages", (5000, MAX_MESSAGES)),
    "a long input": ("/v1/responses", {"input": TOO_LONG}, "input", (MUCH,)),
    "a long message of Anthropic's": (
        "/v1/messages",
        {"messages": [{"role": "user", "content": TOO_LONG}], "max_tokens": 4},
        "messages",
        (MUCH,),
    ),
    "allowed ids": (
        "/v1/completions",
        {"prompt": "hi", "allowed_token_ids": [5] * 200_000},
        "allowed_token_ids",
        (200_000, MAX_LISTED_IDS),
    ),
    "allowed ids for many sequences": (
        "/v1/completions",
        {"prompt": "hi", "allowed_token_ids": [5] * 2000, "n": 100},
        "allowed_token_ids",
        (2000, 200_000, MAX_LISTED_IDS),
    ),
    "biases": (
        "/v1/completions",
        {"prompt": "hi", "logit_bias": {str(token): 1 for token in range(1025)}},
        "logit_bias",
        (1025, 1024),
    ),
    "more values than are read": ("/v1/completions", {"prompt": [5] * 600_000}, "", (MAX_VALUES, 600_006)),
    "more members than are read": (
        "/v1/completions",
        {"prompt": "hi", "logit_bias": {str(token): 1 for token in range(200_000)}},
        "",
        (MAX_VALUES, 800_010),
    ),
    "more sequences than can wait": ("/v1/completions", {"prompt": ["hi"] * 150, "n": 100}, "prompt", (15_000, QUEUE)),
    "a text to tokenize": ("/tokenize", {"prompt": TOO_LONG}, "prompt", (MUCH, TEXT_BYTES)),
    "a chat to tokenize": ("/tokenize", {"messages": [{"role": "user", "content": TOO_LONG}]}, "messages", (MUCH,)),
    "a chat to count": ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": TOO_LONG}]}, "messages", (MUCH,)),
    "ids to detokenize": ("/detokenize", {"tokens": [5] * 100_000}, "tokens", (100_000, CONTEXT)),
}


def test_refused_over_http_by_name_value_and_bound_without_reaching_the_engine(server: HashServer) -> None:
    (front_end,) = server.pids(FRONT_END)
    before = server.metrics()
    memory = psutil.Process(front_end).memory_info().rss
    with httpx.Client(base_url=server.http, timeout=60) as client:
        for name, (path, body, param, numbers) in REFUSED.items():
            reply = client.post(path, json={"model": "hash", **body})
            assert reply.status_code == 400, (name, reply.text)
            error = reply.json()["error"]
            message = error["message"]
            assert "messages" in path or error["code"] in ("invalid_request", "context_length_exceeded"), name
            assert param in message, (name, message)
            assert "messages" in path or (error["param"] or "") == param, (name, error)
            missing = [number for number in numbers if str(number) not in message]
            assert not missing, (name, missing, message)
    assert psutil.Process(front_end).memory_info().rss - memory < 200 * 2**20
    after = server.metrics()
    names = [name for name in after if name.endswith("_finished_total") or name.startswith("prompt_tokens")]
    assert names
    assert {name: after[name] for name in names} == {name: before[name] for name in names}


def grpc_calls(channel: grpc.Channel) -> dict[str, tuple[Any, str]]:
    ours, theirs, triton = InferenceStub(channel), VllmEngineStub(channel), GRPCInferenceServiceStub(channel)
    many = pb.TokenIds(ids=[5] * 200_000)
    text = kserve.ModelInferRequest.InferInputTensor(name="text_input", datatype="BYTES", shape=[1])
    text.contents.bytes_contents.append(TOO_LONG.encode())
    greedy: dict[str, Any] = {"sampling_params": vllm.SamplingParams(max_tokens=4)}
    return {
        "a text": (ours.Generate(pb.GenerateRequest(text=TOO_LONG)), f"text has {MUCH} bytes"),
        "ids": (ours.Generate(pb.GenerateRequest(tokens=many)), "tokens has 200000 tokens"),
        "a chat": (
            ours.Generate(pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="user", content=TOO_LONG)]))),
            f"messages has {MUCH} bytes",
        ),
        "allowed ids": (
            ours.Generate(pb.GenerateRequest(text="hi", sampling=pb.Sampling(allowed_token_ids=many))),
            f"sampling.allowed_token_ids must be at most {MAX_LISTED_IDS} values, got 200000",
        ),
        "stop strings": (
            ours.Generate(pb.GenerateRequest(text="hi", stopping=pb.Stopping(stop=["x" * 5000]))),
            f"stopping.stop must be at most {MAX_STOP_CHARS} characters in all, got 5000",
        ),
        "a text of vLLM's": (theirs.Generate(vllm.GenerateRequest(text=TOO_LONG, **greedy)), f"text has {MUCH} bytes"),
        "ids of vLLM's": (
            theirs.Generate(vllm.GenerateRequest(tokenized=vllm.TokenizedInput(input_ids=[5] * 200_000), **greedy)),
            "tokenized.input_ids has 200000 tokens",
        ),
        "stop ids of vLLM's": (
            theirs.Generate(vllm.GenerateRequest(text="hi", sampling_params=vllm.SamplingParams(stop_token_ids=range(20)))),
            "sampling_params.stop_token_ids must be at most 16 values, got 20",
        ),
        "a text of KServe's": (
            (triton.ModelInfer(kserve.ModelInferRequest(model_name="hash", inputs=[one])) for one in [text]),
            f"text_input has {MUCH} bytes",
        ),
    }


def test_refused_over_grpc(channel: grpc.Channel) -> None:
    for name, (call, message) in grpc_calls(channel).items():
        with pytest.raises(grpc.RpcError) as refused:
            next(iter(call))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT, name
        assert message in (refused.value.details() or ""), (name, refused.value.details())
    with pytest.raises(grpc.RpcError, match=f"has {MUCH} bytes"):
        InferenceStub(channel).Tokenize(pb.TokenizeRequest(text=TOO_LONG))


def test_as_much_as_may_be_is_answered(server: HashServer) -> None:
    longest = "<|assistant|>" * (CONTEXT - 2)
    with httpx.Client(base_url=server.http, timeout=60) as client:

        def answered(path: str, **body: Any) -> Any:
            reply = client.post(path, json={"model": "hash", **body})
            assert reply.status_code == 200, reply.text
            return reply.json()

        assert answered("/v1/completions", prompt=longest, max_tokens=1)["usage"]["prompt_tokens"] == CONTEXT - 2
        assert answered("/tokenize", prompt=longest)["count"] == CONTEXT - 2
        scored = answered("/v1/completions", prompt=[5] * (CONTEXT - 1), prompt_logprobs=20, max_tokens=1)
        assert len(scored["choices"][0]["prompt_logprobs"]) == CONTEXT - 1
        assert len(json.dumps(scored)) > PIECE_BYTES, "it came in pieces"
        stops = [f"{n:03}" + "x" * 253 for n in range(16)]
        many = answered("/v1/completions", prompt=["hi", "ho"], n=100, stop=stops, max_tokens=2)
        assert [choice["index"] for choice in many["choices"]] == list(range(200))
        answered("/v1/completions", prompt="hi", allowed_token_ids=[7] * MAX_LISTED_IDS, max_tokens=1)


@pytest.mark.parametrize("limit", [10, -1])
def test_a_text_that_is_truncated_may_be_of_any_length(server: HashServer, channel: grpc.Channel, limit: int) -> None:
    text = "start " + "word " * 400_000 + "the end"
    body = {"prompt": text, "truncate_prompt_tokens": limit, "max_tokens": 1, "return_token_ids": True}
    reply = httpx.post(f"{server.http}/v1/completions", json=body, timeout=60).json()
    count = limit if limit > 0 else CONTEXT - 1
    expected = httpx.post(f"{server.http}/tokenize", json={"prompt": text[-2 * CONTEXT :]}, timeout=60).json()["tokens"][-count:]
    assert reply["choices"][0]["prompt_token_ids"] == expected
    request = pb.GenerateRequest(
        text=text,
        truncate_prompt_tokens=limit,
        stopping=pb.Stopping(max_tokens=1),
        output=pb.Output(return_prompt_token_ids=True),
    )
    assert next(InferenceStub(channel).Generate(request)).started.prompt_token_ids == expected


def test_lists_of_one_tenant_do_not_take_each_others_room(server: HashServer) -> None:
    """Of two that fit the queue only one by one, the second is refused before it costs anything, and the first is whole."""
    many = {"prompt": [[5, 6, 7 + n] for n in range(QUEUE - 20)], "max_tokens": 3}
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda _: httpx.post(f"{server.http}/v1/completions", json=many, timeout=60), range(4)))
    statuses = sorted(reply.status_code for reply in replies)
    assert statuses[0] == 200
    assert set(statuses) <= {200, 429}
    assert all(len(reply.json()["choices"]) == QUEUE - 20 for reply in replies if reply.status_code == 200)


def test_a_tenant_that_fills_the_queue_is_refused_without_the_engine(tmp_path: Path) -> None:
    with hash_server(tmp_path, max_waiting=40, hangs_at=4) as server:
        many = {"prompt": "hi", "n": 40, "max_tokens": 200, "stream": True}
        with (
            httpx.Client(base_url=server.http, timeout=20) as client,
            client.stream("POST", "/v1/completions", json=many, headers={"X-Tenant": "a"}) as held,
        ):
            lines: Any = held.iter_lines()
            next(lines)  # of 40 sequences 16 may run; the engine says nothing more
            refused = client.post("/v1/completions", json={"prompt": ["hi"] * 3, "n": 9}, headers={"X-Tenant": "a"})
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "queue_full"
            assert "of the tenant wait already, and 27 more are asked for, but at most 40 can wait" in refused.text
            lines.close()
