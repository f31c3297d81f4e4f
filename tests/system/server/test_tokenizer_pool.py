"""What is tokenized without a request is tokenized by tokenizer processes too, where there are any."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import httpx
import pytest

from jaxserve.engine.frontend import Frontend
from jaxserve.engine.intake import Intake
from jaxserve.engine.remote.link import RemoteLink
from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from jaxserve.tokenizer.load import load_tools
from jaxserve.tokenizer.pool import ProcessTexts
from jaxserve.tokenizer.texts import TextTools
from jaxserve.tokenizer.worker import WorkerSpec
from tests.support.hash_engine import remote_engine
from tests.support.serving import Serving, serving

PICO = str(Path(__file__).resolve().parents[3] / "jaxserve" / "assets" / "pico")
CHAT = [{"role": "user", "content": "hi"}]


class OnlyThere(TextTools):
    """Tools of a process that must not tokenize itself."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        raise AssertionError("tokenized in the front end")

    def render(self, *arguments: object) -> list[int]:
        raise AssertionError("rendered in the front end")


@pytest.fixture
async def pooled() -> AsyncIterator[Serving]:
    tools = load_tools(PICO, None)
    async with remote_engine(tokenizer=PICO) as engine:
        link = RemoteLink(engine.spec.address)
        description = await link.described()
        texts = ProcessTexts(OnlyThere(tools.tokenizer, tools.template), WorkerSpec(PICO, None), 1)
        intake = Intake.by_rules(tools.tokenizer, description.rules, "")
        async with asyncio.timeout(30):
            while not texts.workers:
                await asyncio.sleep(0.01)
        async with serving(Frontend(link, texts, description.model, intake)) as running:
            yield running


async def test_tokens_asked_for_come_from_the_pool(pooled: Serving) -> None:
    tools = load_tools(PICO, None)
    text, chat = tools.encode("hi"), tools.render(CHAT, {})
    async with httpx.AsyncClient(base_url=pooled.http, timeout=30) as http, grpc.aio.insecure_channel(pooled.grpc) as channel:
        stub = InferenceStub(channel)
        assert (await http.post("/tokenize", json={"prompt": "hi"})).json()["tokens"] == text
        assert (await http.post("/tokenize", json={"messages": CHAT})).json()["tokens"] == chat
        counted = await http.post("/v1/messages/count_tokens", json={"model": "hash", "messages": CHAT})
        assert counted.json()["input_tokens"] == len(chat)
        assert list((await stub.Tokenize(pb.TokenizeRequest(text="hi"))).token_ids) == text
        assert list((await stub.Tokenize(pb.TokenizeRequest(chat={"messages": CHAT}))).token_ids) == chat
