"""`python -m jaxserve.serve` as people run it: a process, its streams and its exit code."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import grpc
import openai
import pytest

from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from jaxserve.serve import main
from tests.support.serve_process import FREE_PORTS, ROOT, Process, Served, command, environment
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from tests.system.interop import conftest as interop

SMALL = ("--max-num-seqs", "2", "--max-num-batched-tokens", "16", "--max-model-len", "128")


@pytest.fixture(scope="module")
def tiny(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("served")
    checkpoint = write_tiny_checkpoint(folder / "tiny")
    yield from served(folder, str(checkpoint), "--load-format", "dummy", *SMALL)


@pytest.fixture
def sdk(tiny: Process) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tiny.http}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.one_server("engines of a cluster write to its logs")
def test_banner_tells_what_is_served(tiny: Process) -> None:
    banner = tiny.err.read_text()
    for words in ("tiny: LlamaForCausalLM", "float32", "mesh", "weights", "KV cache", "buckets", "compiling: "):
        assert words in banner
    assert tiny.out.read_text().count("\n") == 1


def test_http_and_grpc_give_the_same_text(tiny: Process, sdk: openai.OpenAI) -> None:
    model = sdk.models.list().data[0].id
    whole = sdk.completions.create(model=model, prompt="hello", max_tokens=24, temperature=0)
    stream = sdk.completions.create(model=model, prompt="hello", max_tokens=24, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text
    request = pb.GenerateRequest(text="hello", sampling=pb.Sampling(temperature=0), stopping=pb.Stopping(max_tokens=24))
    with grpc.insecure_channel(tiny.grpc) as channel:
        events = list(InferenceStub(channel).Generate(request))
    assert "".join(event.delta.text for event in events) == whole.choices[0].text
    assert whole.usage is not None
    assert events[-1].finished.usage.completion_tokens == whole.usage.completion_tokens


def test_chat_logprobs_and_several_choices(sdk: openai.OpenAI) -> None:
    reply = sdk.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], n=2, seed=1, max_tokens=5, logprobs=True, top_logprobs=3
    )
    assert [choice.index for choice in reply.choices] == [0, 1]
    for choice in reply.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content
        for position in choice.logprobs.content:
            assert len(position.top_logprobs) == 3
            assert position.logprob <= position.top_logprobs[0].logprob <= 0.0


def test_prompt_logprobs_of_an_echoed_prompt(sdk: openai.OpenAI) -> None:
    choice = sdk.completions.create(model="tiny", prompt="hello", echo=True, logprobs=1, max_tokens=1, temperature=0).choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert choice.logprobs.token_logprobs is not None
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value < 0.0 for value in choice.logprobs.token_logprobs[1:])
    assert choice.text.startswith("hello")
    assert choice.logprobs.tokens[:5] == list("hello")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "x" * 200}, "prompt"),
        ({"prompt": "x", "max_tokens": 500}, "max_tokens"),
        ({"prompt": [1, 10**6]}, "prompt"),
        ({"prompt": "x", "extra_body": {"allowed_token_ids": [10**6]}}, "allowed_token_ids"),
        ({"prompt": "x", "logit_bias": {"1000000": 1}}, "logit_bias"),
        ({"prompt": "x", "temperature": -1}, "temperature"),
    ],
)
def test_bad_input_names_the_field(sdk: openai.OpenAI, fields: dict[str, object], param: str) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as info:
            sdk.completions.create(model="tiny", stream=stream, **fields)  # type: ignore[call-overload]
        assert info.value.param == param


def test_sigterm_exits_with_0(tiny: Process) -> None:
    """The last of the tests that use this process."""
    assert tiny.stop() == 0
    assert tiny.out.read_text().count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no/such/directory",), "no/such/directory"),
        (("--max-num-seqs", "0"), "max_num_seqs"),
        (("--port", "70000"), "port"),
        (("--drain-timeout", "-1"), "drain_timeout"),
    ],
)
def test_what_keeps_it_from_starting_is_one_line(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*FREE_PORTS, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("jaxserve: ")
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize("flag", ["--port", "--grpc-port"])
def test_a_taken_port_is_one_line(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main([*FREE_PORTS, flag, port]) == 2
    _, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert f"127.0.0.1:{port}" in err
    assert flag in err


def test_an_exit_code_leaves_the_process() -> None:
    refused = subprocess.run(
        command("no/such/directory", *FREE_PORTS),
        check=False,
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)


JSON = ("--log-format", "json", "--frontends", "2")


@pytest.fixture(scope="module")
def pico(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    yield from served(tmp_path_factory.mktemp("pico"), *JSON, *interop.SMALL)


def test_the_bundled_model_adds(pico: Process) -> None:
    with openai.OpenAI(base_url=f"{pico.http}/v1", api_key="none") as client:
        stream = client.chat.completions.create(
            model="pico",
            messages=[{"role": "user", "content": "What is 17 + 25?"}],
            temperature=0,
            max_tokens=32,
            stream=True,
        )
        assert "42" in "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="What is 17 + 25?")])
    request = pb.GenerateRequest(chat=chat, sampling=pb.Sampling(temperature=0), stopping=pb.Stopping(max_tokens=32))
    with grpc.insecure_channel(pico.grpc) as channel:
        assert "42" in "".join(event.delta.text for event in InferenceStub(channel).Generate(request))


@pytest.mark.one_server("engines of a cluster write to its logs")
def test_logs_in_json_are_nothing_else(pico: Process) -> None:
    with openai.OpenAI(base_url=f"{pico.http}/v1", api_key="none") as client, pytest.raises(openai.BadRequestError):
        client.completions.create(model="pico", prompt="x", max_tokens=-1)
    with_status = [line for line in json_lines(pico) if "status" in line]
    assert with_status
    assert all(isinstance(line["status"], int) for line in with_status)
    said = [line["message"] for line in json_lines(pico)]
    assert sum("no API keys" in message for message in said) == 1, "once, however many front ends there are"
    for words in ("pico: ", "KV cache", "compiling: ", "setting  "):
        assert any(words in message for message in said), words


def json_lines(process: Process) -> list[dict[str, Any]]:
    """Everything on stderr."""
    return [json.loads(line) for line in process.err.read_text().splitlines()]


def test_what_keeps_a_server_from_starting_is_json_too() -> None:
    given = command("/no/such/model", *JSON, "--log-level", "error", *FREE_PORTS)
    refused = subprocess.run(given, check=False, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120)
    assert refused.returncode == 2
    [line] = [json.loads(line) for line in refused.stderr.splitlines()]
    assert (line["level"], "no checkpoint directory" in line["message"]) == ("error", True)
