"""Clients that all come at once, each a tenant of its own; each tells how many output tokens it was handed."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anthropic
import grpc.aio
import httpx
import openai

from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from tests.support.serve_process import ROOT
from tests.system.interop.conftest import Gated
from tests.system.interop.programs import run
from tests.system.interop.questions import TEXT_TASKS

HERE = Path(__file__).parent
TEXT: dict[str, Any] = {"model": "pico", "prompt": "1 2 3 4"}
EXACT: dict[str, Any] = {"ignore_eos": True, "return_token_ids": True}
SAY: Any = [{"role": "user", "content": "What is 17 + 25?"}]


def openai_client(server: Gated, tenant: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.base_url, api_key=server.keys[tenant], max_retries=0)


async def read(stream: Any, most: int = sys.maxsize) -> int:
    """Tokens of a stream of completions, until it ends or fails or so many are there."""
    got = 0
    try:
        async for chunk in stream:
            got += sum(len(choice.to_dict().get("token_ids") or ()) for choice in chunk.choices)
            if got >= most:
                break
    except openai.APIError:
        pass
    await stream.close()
    return got


async def total(answers: Iterable[Any]) -> int:
    return sum(await asyncio.gather(*answers))


async def openai_sdk(server: Gated) -> int:
    """Whole answers and streams, of one sequence and of several."""
    async with openai_client(server, "openai") as client:

        async def whole(n: int) -> int:
            reply = await client.completions.create(**TEXT, n=n, max_tokens=20)
            assert reply.usage is not None
            return int(reply.usage.completion_tokens)

        async def chat() -> int:
            reply = await client.chat.completions.create(model="pico", messages=SAY, logprobs=True)
            tokens = reply.choices[0].logprobs
            assert tokens is not None
            return len(tokens.content or ())

        async def streamed(n: int) -> int:
            return await read(await client.completions.create(**TEXT, n=n, max_tokens=20, stream=True, extra_body=EXACT))

        return await total([*map(whole, (1, 2, 3)), *(chat() for _ in range(4)), *map(streamed, (1, 2, 3))])


async def late(server: Gated) -> int:
    """Streams that a deadline keeps from starting, or ends with an error: what came before it was delivered."""
    async with openai_client(server, "late") as client:

        async def one(seconds: float) -> int:
            extra = {**EXACT, "timeout": seconds}
            try:
                stream = await client.completions.create(**TEXT, max_tokens=500, stream=True, extra_body=extra)
            except openai.APIStatusError as error:
                if error.code not in ("deadline_exceeded", "overloaded"):
                    raise
                return 0
            return await read(stream)

        return await total(map(one, (0.1, 0.5, 1.0, 2.0)))


async def repeats(server: Gated) -> int:
    """The same request four times: it is delivered, and paid, once."""
    async with openai_client(server, "repeats") as client:
        headers = {"Idempotency-Key": "the same"}
        asked = [client.completions.create(**TEXT, max_tokens=30, extra_headers=headers) for _ in range(4)]
        replies = await asyncio.gather(*asked)
    assert len({reply.id for reply in replies}) == 1
    usage = replies[0].usage
    assert usage is not None
    return int(usage.completion_tokens)


async def refused(server: Gated) -> int:
    """What no server answers."""
    stranger = openai.AsyncOpenAI(base_url=server.base_url, api_key="sk-wrong", max_retries=0)
    changes: list[dict[str, Any]] = [{"temperature": -1}, {"prompt": [5] * 600}, {"model": "other"}, {"max_tokens": 9999}]
    async with openai_client(server, "refused") as client, stranger:
        asked = [
            client.completions.create(**{**TEXT, **change, "stream": stream}) for change in changes for stream in (True, False)
        ]
        asked.append(stranger.completions.create(**TEXT))
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(outcome, openai.APIStatusError) for outcome in outcomes), outcomes
    return 0


async def leavers(server: Gated) -> int:
    """Clients that go away in mid-stream."""
    async with openai_client(server, "leavers") as client:

        async def streamed(n: int, most: int) -> int:
            return await read(await client.completions.create(**TEXT, n=n, max_tokens=400, stream=True, extra_body=EXACT), most)

        return await total([streamed(1, 1), streamed(1, 9), streamed(2, 20), streamed(3, 5)])


async def impatient(server: Gated) -> int:
    """Clients that are gone when their requests come: a whole answer that nobody got is free."""
    address = httpx.URL(server.base_url)

    async def one(n: int) -> None:
        body = json.dumps({**TEXT, **EXACT, "n": n, "max_tokens": 500})
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc.decode()}\r\nContent-Type: application/json\r\n"
        head += f"Authorization: Bearer {server.keys['impatient']}\r\nContent-Length: {len(body)}\r\n\r\n"
        _, writer = await asyncio.open_connection(address.host, address.port)
        writer.write((head + body).encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(one(4), one(8), one(8))
    return 0


async def anthropic_sdk(server: Gated) -> int:
    async with anthropic.AsyncAnthropic(base_url=server.process.http, api_key=server.keys["anthropic"], max_retries=0) as client:
        asked: dict[str, Any] = {"model": "pico", "max_tokens": 30, "messages": SAY}

        async def whole() -> int:
            return int((await client.messages.create(**asked)).usage.output_tokens)

        async def streamed() -> int:
            async with client.messages.stream(**asked) as stream:
                return (await stream.get_final_message()).usage.output_tokens

        return await total([whole(), whole(), streamed(), streamed()])


async def grpc_client(server: Gated) -> int:
    """Calls that are read to the end, one that is refused, and one whose deadline passes while it is read."""
    metadata = (("authorization", f"Bearer {server.keys['grpc']}"),)
    async with grpc.aio.insecure_channel(server.process.grpc) as channel:

        async def one(request: pb.GenerateRequest, code: grpc.StatusCode) -> int:
            got = 0
            call = InferenceStub(channel).Generate(request, metadata=metadata)
            try:
                async for event in call:
                    got += len(event.delta.token_ids)
            except grpc.aio.AioRpcError as error:
                if error.code() is not code:
                    raise
            return got

        return await total(
            [
                *(one(generate(n=n, max_tokens=20), grpc.StatusCode.OK) for n in (1, 2, 3)),
                one(generate(n=1, max_tokens=9999), grpc.StatusCode.INVALID_ARGUMENT),
            ]
        )


async def grpc_leavers(server: Gated) -> int:
    """Calls that are cancelled after some tokens, and one that its deadline ends.

    Counted is what came before a call's last message: that a call took a message the server knows when it asks for the next,
    and the end of a call may come in between. Such a message is not billed.
    """
    metadata = (("authorization", f"Bearer {server.keys['grpc-leavers']}"),)
    async with grpc.aio.insecure_channel(server.process.grpc) as channel:

        async def one(most: int, timeout: float | None = None) -> int:
            got = before = 0
            call = InferenceStub(channel).Generate(generate(n=1, max_tokens=400), metadata=metadata, timeout=timeout)
            try:
                async for event in call:
                    before, got = got, got + len(event.delta.token_ids)
                    if got >= most:
                        call.cancel()
                        break
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise
            return before

        return await total([one(1), one(7), one(50), one(400, timeout=0.3)])


def generate(n: int, max_tokens: int) -> pb.GenerateRequest:
    stopping = pb.Stopping(max_tokens=max_tokens, ignore_eos=True)
    return pb.GenerateRequest(text="1 2 3 4", sampling=pb.Sampling(n=n), stopping=stopping)


async def triton(server: Gated) -> int:
    """Four requests of six tokens, and two that are refused."""
    program = [sys.executable, str(ROOT / "tests/support/triton_client.py"), server.process.grpc, "6", server.keys["triton"]]
    seen = json.loads((await asyncio.to_thread(run, program, cwd=ROOT)).stdout)
    assert (len(seen["streamed"]["texts"]), len(seen["streamed"]["errors"]), seen["whole"]["reason"]) == (3, 1, "length")
    return 6 * (1 + 3)


async def litellm(server: Gated) -> int:
    program = [sys.executable, str(HERE / "litellm_client.py"), server.process.http, server.keys["litellm"]]
    done = await asyncio.to_thread(run, program, cwd=ROOT)
    tokens: int = json.loads(done.stdout.splitlines()[-1])["tokens"]
    return tokens


async def lm_eval(server: Gated, folder: Path) -> int:
    """Four candidates for each task, of which the server makes one more token each."""
    key, limit = server.keys["lm-eval"], 40
    arguments = f"model=pico,base_url={server.base_url}/completions,auth_token={key},num_concurrent=8,max_length=512"
    program = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", arguments]
    program += ["--tasks", "pico_addition_choice_text", "--limit", str(limit), "--include_path", str(TEXT_TASKS)]
    await asyncio.to_thread(run, program, cwd=folder, OPENAI_API_KEY=key, HF_HOME=str(folder / "cache"))
    return 4 * limit
