"""Several models behind one server: every surface takes the one that a request names."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest

from jaxserve.engine.calls import EngineCall, OpenTransfer, PauseEngine, SleepEngine, UpdateFromDisk, WeightSums
from jaxserve.engine.client import EngineStats
from jaxserve.errors import EngineDeadError, InvalidRequestError
from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto import kserve_pb2 as kserve
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from jaxserve.proto.kserve_pb2_grpc import GRPCInferenceServiceStub
from server.models import ManyModels
from tests.support.scripted import ByteTokenizer, ScriptedClient
from tests.support.serving import Serving, serving


class MarkedTokenizer(ByteTokenizer):
    adds_bos = True


class OtherModel(ScriptedClient):
    """Another name, another context, another tokenizer: a prompt has a token more."""

    def __init__(self) -> None:
        super().__init__()
        self.model = replace(self.model, name="other", aliases=("else",), max_model_len=400)
        self.tokenizer = MarkedTokenizer()


@pytest.fixture
def models() -> tuple[ScriptedClient, OtherModel]:
    return ScriptedClient(), OtherModel()


@pytest.fixture
async def servers(models: tuple[ScriptedClient, OtherModel]) -> AsyncIterator[Serving]:
    async with serving(ManyModels(models)) as running:
        yield running


SAY = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hello"},
    "/v1/chat/completions": {"messages": SAY},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": SAY, "max_tokens": 16},
    "/tokenize": {"prompt": "hello"},
}


@pytest.mark.parametrize("path", BODIES)
async def test_a_request_goes_to_the_model_that_it_names(
    http: httpx.AsyncClient, models: tuple[ScriptedClient, OtherModel], path: str
) -> None:
    seen = []
    for name in ("echo", "other", "else", None):
        reply = await http.post(path, json=BODIES[path] | ({"model": name} if name else {"model": "echo"}))
        assert reply.status_code == 200, reply.text
        seen.append(reply.json().get("model", reply.json().get("max_model_len")))
    assert seen in (["echo", "other", "other", "echo"], [512, 400, 400, 512])
    assert [len(one.prompts) for one in models] in ([2, 2], [0, 0])  # tokenizing runs nothing
    unknown = await http.post(path, json=BODIES[path] | {"model": "third"})
    assert unknown.status_code == 404
    assert "this server has 'echo', 'other'" in unknown.text


async def test_tokens_are_those_of_the_models_own_tokenizer(http: httpx.AsyncClient) -> None:
    used = [
        (await http.post("/v1/completions", json={"prompt": "hello", "model": name})).json()["usage"]["prompt_tokens"]
        for name in ("echo", "other")
    ]
    assert used == [5, 6]


async def test_models_are_listed_and_described(http: httpx.AsyncClient) -> None:
    listed = (await http.get("/v1/models")).json()["data"]
    assert [(one["id"], one["max_model_len"]) for one in listed] == [("echo", 512), ("other", 400), ("else", 400)]
    assert (await http.get("/v1/models/else")).json()["max_model_len"] == 400
    assert (await http.get("/server_info")).json()["served_model_names"] == ["echo", "other", "else"]
    index = (await http.post("/v2/repository/index")).json()
    assert [one["name"] for one in index] == ["echo", "other", "else"]


async def test_grpc_takes_the_model_that_is_named(channel: grpc.aio.Channel) -> None:
    stub, triton = InferenceStub(channel), GRPCInferenceServiceStub(channel)
    for name, tokens in (("", 5), ("echo", 5), ("else", 6)):
        events = [event async for event in stub.Generate(pb.GenerateRequest(text="hello", model=name))]
        assert events[0].started.prompt_tokens == tokens
    assert (await stub.GetModelInfo(pb.GetModelInfoRequest(model="other"))).max_model_len == 400
    request = kserve.ModelInferRequest(model_name="else")
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"yo")
    assert (await triton.ModelInfer(request)).model_name == "other"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await triton.ModelInfer(kserve.ModelInferRequest(model_name="third"))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_model_that_is_gone_leaves_the_others(
    servers: Serving, http: httpx.AsyncClient, channel: grpc.aio.Channel, models: tuple[ScriptedClient, OtherModel]
) -> None:
    def dead() -> None:
        raise EngineDeadError("gone")

    models[0].check_health = dead  # type: ignore[method-assign]
    assert (await http.post("/v1/completions", json={"prompt": "hello", "model": "echo"})).status_code == 503
    assert (await http.post("/v1/completions", json={"prompt": "hello", "model": "other"})).status_code == 200
    assert (await http.get("/ready")).status_code == 200
    ready = [(await http.get(f"/v2/models/{name}/ready")).status_code for name in ("echo", "other")]
    assert ready == [503, 200]
    triton = GRPCInferenceServiceStub(channel)
    told = [(await triton.ModelReady(kserve.ModelReadyRequest(name=name))).ready for name in ("echo", "other", "third")]
    assert told == [False, True, False]
    up = {line for line in (await http.get("/metrics")).text.splitlines() if line.startswith("jaxserve:engine_up")}
    assert up == {'jaxserve:engine_up{model_name="echo"} 0.0', 'jaxserve:engine_up{model_name="other"} 1.0'}
    models[1].check_health = dead  # type: ignore[method-assign]
    assert (await http.get("/ready")).status_code == 503
    for one in models:
        del one.check_health


async def test_a_key_sees_its_own_models(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    digest = hashlib.sha256(b"one").hexdigest()
    keys.write_text(f'[[key]]\nsha256 = "{digest}"\ntenant = "acme"\nmodels = ["other"]\n')
    own = {"Authorization": "Bearer one"}
    async with (
        serving(ManyModels([ScriptedClient(), OtherModel()]), keys=str(keys)) as running,
        httpx.AsyncClient(base_url=running.http, headers=own, timeout=60) as http,
    ):
        listed = (await http.get("/v1/models")).json()["data"]
        assert [one["id"] for one in listed] == ["other", "else"]
        assert (await http.post("/v1/completions", json={"prompt": "x", "model": "echo"})).status_code == 404
        unnamed = await http.post("/v1/completions", json={"prompt": "x"})
        assert unnamed.json()["model"] == "other"  # the first that the key may use


async def test_what_is_of_all_models_adds_up(models: tuple[ScriptedClient, OtherModel]) -> None:
    def stats(running: int) -> EngineStats:
        return EngineStats(**dict.fromkeys(EngineStats.__dataclass_fields__, running))

    models[0].stats, models[1].stats = (lambda: stats(3)), (lambda: stats(4))  # type: ignore[method-assign]
    models[0].heartbeat_age, models[1].heartbeat_age = (lambda: 9.0), (lambda: 2.0)  # type: ignore[method-assign]
    both = ManyModels(models)
    added = both.stats()
    assert (added.running, added.waiting, added.received, added.pages_total) == (7, 7, 7, 7)
    assert both.heartbeat_age() == 2.0
    await both.reset_prefix_cache()
    assert [one.resets for one in models] == [1, 1]


async def test_weights_of_one_of_several_models_are_not_updated(models: tuple[ScriptedClient, OtherModel]) -> None:
    """A checkpoint is of one of them: none may be asked."""
    calls: list[EngineCall[Any]] = [UpdateFromDisk("/nowhere"), SleepEngine(), PauseEngine(), OpenTransfer(), WeightSums()]
    for call in calls:
        with pytest.raises(InvalidRequestError, match="not echo, other"):
            await ManyModels(models).call(call)
