"""Adapters of a server: named as models, loaded and unloaded while it serves, each tenant's its own."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import openai
import pytest
from safetensors.numpy import load_file, save_file

from jaxserve.config.fields import EngineConfig
from jaxserve.engine.local import LocalEngine
from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from jaxserve.rollout.transfer import TransferError, WeightSender
from tests.golden.reading import DATA
from tests.golden.test_adapters import ADAPTERS
from tests.support.serving import Serving, serving

BASE = "llama-biases"
ADMIN, ACME, OTHER = "an-admin's-key", "acme's-key", "another's-key"
KEYS = ((ADMIN, "ops", "true"), (ACME, "acme", "false"), (OTHER, "other", "false"))
NAMES = ("all", "stable", "patterns", "one-layer")
SMALL = {
    "max_num_seqs": 4,
    "before_ready": "fewest",
    "max_num_batched_tokens": 32,
    "max_model_len": 128,
    "num_pages": 64,
    "dtype": "float32",
}


def expected(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ADAPTERS / BASE / name / "expected.json").read_text())
    return found


@pytest.fixture(scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory, watched: Path) -> AsyncIterator[Serving]:
    """With two slots and three places in memory for four adapters."""
    settings = {**SMALL, "enable_lora": True, "max_loras": 2, "max_cpu_loras": 3, "max_lora_rank": 8}
    settings["lora_modules"] = (f"all={ADAPTERS / BASE / 'all'}",)
    settings["lora_dir"] = str(watched)
    settings["late_compiles"] = "raise"  # loading an adapter compiles nothing
    engine = await LocalEngine.start(EngineConfig.from_settings({"model": str(DATA / BASE), **settings}), lambda *told: None)
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(
        "".join(
            f'[[key]]\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\ntenant = "{tenant}"\nadmin = {admin}\n'
            for key, tenant, admin in KEYS
        )
    )
    async with serving(engine, keys=str(keys)) as running:
        yield running


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that the servers watch."""
    return tmp_path_factory.mktemp("watched", numbered=False)


@pytest.fixture
async def admin(servers: Serving) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(servers, ADMIN) as client:
        yield client
        for model in (await client.get("/v1/models")).json()["data"]:  # every test begins with the one from the start
            if model.get("parent") and model["id"] != "all":
                await post(client, "/v1/unload_lora_adapter", {"lora_name": model["id"]})


def client_of(servers: Serving, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=servers.http, timeout=60, headers={"Authorization": f"Bearer {key}"})


async def post(client: httpx.AsyncClient, path: str, body: dict[str, Any], status: int = 200) -> Any:
    reply = await client.post(path, json=body)
    assert reply.status_code == status, reply.text
    return reply.json() if status == 200 else reply.json()["error"]


async def load(client: httpx.AsyncClient, name: str, directory: Path | None = None, **more: Any) -> Any:
    body = {"lora_name": name, "lora_path": str(directory or ADAPTERS / BASE / name), **more}
    return await post(client, "/v1/load_lora_adapter", body)


async def tokens_of(client: httpx.AsyncClient, model: str, prompt: list[int], **more: Any) -> list[int]:
    body = {"model": model, "prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    reply = await post(client, "/v1/completions", {**body, **more})
    assert reply["model"] == model
    tokens: list[int] = reply["choices"][0]["token_ids"]
    return tokens


async def test_an_adapter_is_a_model_of_its_own(servers: Serving, admin: httpx.AsyncClient) -> None:
    one = expected("all")[0]
    assert await tokens_of(admin, "all", one["prompt"]) == one["tokens"]
    assert await tokens_of(admin, BASE, one["prompt"], lora_adapter="all") == one["tokens"]
    assert await tokens_of(admin, BASE, one["prompt"]) != one["tokens"]
    async with openai.AsyncOpenAI(base_url=f"{servers.http}/v1", api_key=ADMIN, max_retries=0) as sdk:
        listed = [model async for model in await sdk.models.list()]
        assert [(model.id, getattr(model, "parent", None)) for model in listed] == [(BASE, None), ("all", BASE)]
        assert (await sdk.models.retrieve("all")).id == "all"
        stream = await sdk.completions.create(model="all", prompt=one["prompt"], max_tokens=4, temperature=0, stream=True)
        assert {chunk.model async for chunk in stream} == {"all"}
    request = pb.GenerateRequest(
        model="all",
        tokens=pb.TokenIds(ids=one["prompt"]),
        sampling=pb.Sampling(temperature=0),
        stopping=pb.Stopping(max_tokens=16, ignore_eos=True),
    )
    async with grpc.aio.insecure_channel(servers.grpc) as channel:
        stub = InferenceStub(channel)
        events = [event async for event in stub.Generate(request, metadata=(("authorization", f"Bearer {ADMIN}"),))]
    assert [token for event in events for token in event.delta.token_ids] == one["tokens"]


async def test_adapters_come_and_go_while_others_run(admin: httpx.AsyncClient) -> None:
    """Loads, unloads and requests at random: never the output of another adapter, nothing is left, nothing compiled."""
    chance = random.Random(1)
    known = {"all"}

    async def ask(name: str) -> None:
        one = chance.choice(expected(name))
        reply = await admin.post(
            "/v1/completions",
            json={
                "model": name,
                "prompt": one["prompt"],
                "max_tokens": 8,
                "temperature": 0,
                "ignore_eos": True,
                "return_token_ids": True,
            },
        )
        assert reply.status_code in (200, 404), reply.text  # it may have gone before the request came
        assert reply.status_code == 404 or reply.json()["choices"][0]["token_ids"] == one["tokens"][:8], name

    async with asyncio.TaskGroup() as group:
        for _ in range(60):
            name = chance.choice(NAMES)
            if name not in known:
                known.add(name)
                await load(admin, name)
            elif name != "all" and chance.random() < 0.3:
                known.discard(name)
                await post(admin, "/v1/unload_lora_adapter", {"lora_name": name})
            else:
                group.create_task(ask(name))
                await asyncio.sleep(0)
    load_of = (await admin.get("/load")).json()
    assert (load_of["running"], load_of["waiting"], load_of["kv_cache_usage"]) == (0, 0, 0.0)


async def test_a_name_that_is_loaded_again_is_another_adapter(admin: httpx.AsyncClient) -> None:
    first, second = expected("stable")[2], expected("patterns")[2]
    await load(admin, "mine", ADAPTERS / BASE / "stable")
    assert await tokens_of(admin, "mine", first["prompt"]) == first["tokens"]
    error = await post(
        admin, "/v1/load_lora_adapter", {"lora_name": "mine", "lora_path": str(ADAPTERS / BASE / "patterns")}, status=409
    )
    assert "load_inplace" in error["message"]
    await load(admin, "mine", ADAPTERS / BASE / "patterns", load_inplace=True)
    assert await tokens_of(admin, "mine", first["prompt"]) != first["tokens"], "a prefix of the other one"
    assert await tokens_of(admin, "mine", second["prompt"]) == second["tokens"]


async def test_a_pinned_one_stays_and_one_place_is_left_to_others(admin: httpx.AsyncClient) -> None:
    assert (await load(admin, "stable", pin=True))["pinned"]
    error = await post(
        admin,
        "/v1/load_lora_adapter",
        {"lora_name": "patterns", "lora_path": str(ADAPTERS / BASE / "patterns"), "pin": True},
        status=409,
    )
    assert "max_loras is 2: 1 adapters may be pinned" in error["message"]
    await load(admin, "patterns")
    await load(admin, "one-layer")
    for name in ("stable", "patterns", "one-layer", "all", "stable"):
        one = expected(name)[0]
        assert await tokens_of(admin, name, one["prompt"]) == one["tokens"]
    assert not (await load(admin, "stable", load_inplace=True))["pinned"]
    assert (await load(admin, "patterns", load_inplace=True, pin=True))["pinned"]


async def test_what_is_put_into_the_watched_directory_is_a_model(admin: httpx.AsyncClient, watched: Path) -> None:
    one = expected("stable")[1]
    shutil.copytree(ADAPTERS / BASE / "stable", watched / ".mine")
    (watched / ".mine").rename(watched / "mine")
    await until(admin, "mine", 200)
    assert await tokens_of(admin, "mine", one["prompt"]) == one["tokens"]
    shutil.rmtree(watched / "mine")
    await until(admin, "mine", 404)
    await post(admin, "/v1/completions", {"model": "mine", "prompt": one["prompt"]}, status=404)


async def until(client: httpx.AsyncClient, model: str, status: int) -> None:
    async with asyncio.timeout(60):
        while (await client.get(f"/v1/models/{model}")).status_code != status:
            await asyncio.sleep(0.05)


async def test_a_trainer_sends_one(servers: Serving, admin: httpx.AsyncClient) -> None:
    first, second = expected("stable")[2], expected("patterns")[2]

    def send(adapter: str, **options: Any) -> None:
        directory = ADAPTERS / BASE / adapter
        params = load_file(directory / "adapter_model.safetensors")
        config = json.loads((directory / "adapter_config.json").read_text())
        with WeightSender(servers.http, ADMIN, piece_bytes=1000) as sender:
            sender.send_adapter("sent", params, {**config, **options.pop("config", {})}, **options)

    before = await tokens_of(admin, BASE, first["prompt"])
    await asyncio.to_thread(send, "stable", tenant="acme")
    async with client_of(servers, ACME) as acme, client_of(servers, OTHER) as other:
        assert await tokens_of(acme, "sent", first["prompt"]) == first["tokens"]
        assert (await other.get("/v1/models/sent")).status_code == 404
    for change, status, said in (
        ({"load_inplace": False, "tenant": "acme"}, 409, "load_inplace"),
        ({"config": {"r": 9}, "tenant": "acme"}, 400, "max_lora_rank is 8"),
    ):
        with pytest.raises(TransferError, match=said) as caught:
            await asyncio.to_thread(send, "stable", **change)
        assert caught.value.status == status
    await asyncio.to_thread(send, "patterns", tenant="acme")
    async with client_of(servers, ACME) as acme:
        assert await tokens_of(acme, "sent", second["prompt"]) == second["tokens"]
        shown = (await acme.get("/v1/models/sent")).json()
        assert (shown["parent"], shown["root"]) == (BASE, "")
        assert (await acme.post("/start_adapter_update", json={})).status_code == 403
    await post(admin, "/v1/unload_lora_adapter", {"lora_name": "sent"})
    assert await tokens_of(admin, BASE, first["prompt"]) == before
    assert (await admin.get("/weight_info")).json()["weight_version"] is None


async def test_tenants_see_and_use_their_own_and_everybodys(servers: Serving, admin: httpx.AsyncClient) -> None:
    one = expected("stable")[0]
    await load(admin, "stable", tenant="acme")
    async with client_of(servers, ACME) as acme, client_of(servers, OTHER) as other:
        assert await tokens_of(acme, "stable", one["prompt"]) == one["tokens"]
        names = [[model["id"] for model in (await client.get("/v1/models")).json()["data"]] for client in (acme, other)]
        assert names == [[BASE, "all", "stable"], [BASE, "all"]]
        for missing in ("stable", "nothing"):
            error = await post(other, "/v1/completions", {"model": missing, "prompt": "a"}, status=404)
            assert (error["code"], error["param"]) == ("model_not_found", "model")
            assert (await other.get(f"/v1/models/{missing}")).status_code == 404
        for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            assert (await acme.post(path, json={"lora_name": "x", "lora_path": "/"})).status_code == 403
    await post(admin, "/v1/unload_lora_adapter", {"lora_name": "stable"})


def changed(folder: Path, tensors: dict[str, Any] | None = None, **config: Any) -> Path:
    """The adapter "stable" with something else in it."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ADAPTERS / BASE / "stable", folder)
    told = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**told, **config}))
    if tensors:
        kept = load_file(folder / "adapter_model.safetensors")
        for name, change in tensors.items():
            old = next(key for key in kept if key.endswith(name))
            value = change(kept[old])
            del kept[old]
            if value is not None:
                kept[old if not isinstance(value, tuple) else value[0]] = value if not isinstance(value, tuple) else value[1]
        save_file(kept, folder / "adapter_model.safetensors")
    return folder


Q = "layers.0.self_attn.q_proj.lora_A.weight"
BAD = [
    ({"r": 9}, None, "rank 9, and max_lora_rank is 8"),
    ({"r": 4}, None, "must be [4,"),
    ({"peft_type": "IA3"}, None, "peft_type is 'IA3'"),
    ({"use_dora": True}, None, "use_dora=True is not supported"),
    ({"bias": "all"}, None, "bias='all' is not supported"),
    ({"modules_to_save": ["lm_head"]}, None, "modules_to_save"),
    ({"lora_alpha": "8"}, None, "lora_alpha must be a number"),
    ({"rank_pattern": {"(": 2}}, None, "no regular expression"),
    ({}, {Q: lambda value: value * np.nan}, "not finite"),
    ({}, {Q: lambda value: value[:, :-1].copy()}, "must be [8,"),
    ({}, {Q: lambda value: None}, "only one of lora_A and lora_B"),
    ({}, {Q: lambda value: ("base_model.model.lm_head.lora_A.weight", value)}, "only one of lora_A and lora_B"),
    ({}, {Q: lambda value: ("somebody's tensor", value)}, "no part of a LoRA adapter"),
]


@pytest.mark.parametrize(("config", "tensors", "said"), BAD, ids=[said for _, _, said in BAD])
async def test_what_cannot_be_served_is_named(
    admin: httpx.AsyncClient, tmp_path: Path, config: dict[str, Any], tensors: dict[str, Any] | None, said: str
) -> None:
    folder = changed(tmp_path / "bad", tensors, **config)
    error = await post(admin, "/v1/load_lora_adapter", {"lora_name": "bad", "lora_path": str(folder)}, status=400)
    assert said in error["message"]
    assert error["param"] == "lora_path"
    names = [model["id"] for model in (await admin.get("/v1/models")).json()["data"]]
    assert names == [BASE, "all"]


async def test_other_things_that_are_refused(admin: httpx.AsyncClient, tmp_path: Path) -> None:
    stable = str(ADAPTERS / BASE / "stable")
    for body, status, said in (
        ({"lora_name": "x", "lora_path": str(tmp_path / "nowhere")}, 400, "adapter_config.json"),
        ({"lora_name": "x", "lora_path": str(DATA / BASE)}, 400, "adapter_config.json"),
        ({"lora_name": "", "lora_path": stable}, 400, "lora_name"),
        ({"lora_name": BASE, "lora_path": stable}, 409, "the model's own name"),
        ({"lora_name": "all", "lora_path": stable}, 409, "load_inplace"),
        ({"lora_name": "x"}, 400, "lora_path"),
        ({"lora_name": "x", "lora_path": stable, "is_3d_lora_weight": True}, 400, "is_3d_lora_weight"),
    ):
        error = await post(admin, "/v1/load_lora_adapter", body, status=status)
        assert said in error["message"], body
    assert "nothing" in (await post(admin, "/v1/unload_lora_adapter", {"lora_name": "nothing"}, status=404))["message"]
    both = {"model": "all", "lora_adapter": "stable", "prompt": "a"}
    assert (await post(admin, "/v1/completions", both, status=400))["param"] == "lora_adapter"


async def test_metrics_say_which_adapters_requests_use_and_what_they_take(admin: httpx.AsyncClient) -> None:
    """One more runs than there are slots for; the base's requests are not named."""
    for name in NAMES[1:]:
        await load(admin, name)

    found = asyncio.Event()

    async def stream(name: str, prompt: list[int]) -> None:
        body = {"model": name, "prompt": prompt, "max_tokens": 100, "ignore_eos": True, "stream": True}
        while not found.is_set():
            async with admin.stream("POST", "/v1/completions", json=body) as reply:
                async for _ in reply.aiter_lines():
                    pass

    def infos(text: str) -> list[str]:
        return [line.split(" ")[0] for line in text.splitlines() if line.startswith("vllm:lora_requests_info{")]

    labels = 'max_lora="2",running_lora_adapters="{}",waiting_lora_adapters="{}"'
    shares = (("all,stable", "patterns"), ("all,patterns", "stable"), ("patterns,stable", "all"))  # whichever came first
    wanted = {"vllm:lora_requests_info{" + labels.format(*names) + "}" for names in shares}
    seen = set[str]()
    async with asyncio.TaskGroup() as group:
        for name in (*NAMES[:3], BASE):
            group.create_task(stream(name, [5, 6, 7]))
        for _ in range(30):  # pages, which are rendered once a second
            seen.update(infos((await admin.get("/metrics")).text))
            if seen & wanted:
                break
        found.set()
    assert seen & wanted
    text = (await admin.get("/metrics")).text
    assert infos(text) == ["vllm:lora_requests_info{" + labels.format("", "") + "}"]
    taken = {where: f'jaxserve:adapter_{where}_bytes{{model_name="{BASE}"}} ' for where in ("device", "host")}
    device, host = (float(text.partition(line)[2].partition("\n")[0]) for line in taken.values())
    assert (device > 0, host) == (True, device * 3 / 2), "two slots on the device, three places here"


async def test_one_that_changes_on_its_disk_is_not_served_for_another(admin: httpx.AsyncClient, tmp_path: Path) -> None:
    """It has left memory by the time it is needed: its requests fail, by name, and others go on."""
    folder = changed(tmp_path / "mine", lora_alpha=5)
    await load(admin, "mine", folder)
    for name in NAMES[1:]:
        await load(admin, name)
    for name in NAMES:  # each takes a place in memory
        assert await tokens_of(admin, name, expected(name)[0]["prompt"]) == expected(name)[0]["tokens"]
    changed(folder, lora_alpha=4)
    error = await post(admin, "/v1/completions", {"model": "mine", "prompt": [1, 2, 3]}, status=500)
    assert "has changed since it was loaded" in error["message"]
    assert await tokens_of(admin, "all", expected("all")[1]["prompt"]) == expected("all")[1]["tokens"]
