"""A trainer that speaks vLLM's or SGLang's words to a server: other weights, pauses and sleep, with an admin key alone."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from smg.rl import RL, paused

from jaxserve.config.fields import EngineConfig
from jaxserve.engine.local import LocalEngine
from tests.support.live import random_tensors, write_checkpoint
from tests.support.serving import serving
from tests.support.smg import smg
from tests.support.tiny_checkpoint import write_tiny_checkpoint

ADMIN, USER = "an-admin's-key", "a-user's-key"


def config_of(directory: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return config


@pytest.fixture
async def engine(tmp_path: Path) -> LocalEngine:
    directory = write_tiny_checkpoint(tmp_path / "tiny", context=32)
    write_checkpoint(directory, config_of(directory), random_tensors(config_of(directory), 1))
    settings = {"max_num_seqs": 2, "before_ready": "fewest", "max_num_batched_tokens": 16, "num_pages": 32, "page_size": 4}
    return await LocalEngine.start(EngineConfig.from_settings({"model": str(directory), **settings}), lambda *told: None)


@pytest.fixture
async def http(engine: LocalEngine, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    entries = [(ADMIN, "true"), (USER, "false")]
    keys = tmp_path / "keys.toml"
    keys.write_text(
        "".join(
            f'[[key]]\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\ntenant = "acme"\nadmin = {admin}\n'
            for key, admin in entries
        )
    )
    async with (
        serving(engine, keys=str(keys)) as servers,
        httpx.AsyncClient(base_url=servers.http, timeout=60, headers={"Authorization": f"Bearer {ADMIN}"}) as client,
    ):
        yield client


async def say(http: httpx.AsyncClient) -> str:
    asked = {"model": "tiny", "prompt": "ab", "max_tokens": 6, "temperature": 0.0, "ignore_eos": True}
    reply = await http.post("/v1/completions", json=asked)
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["choices"][0]["text"]
    return text


async def post(http: httpx.AsyncClient, path: str, body: Any = None) -> Any:
    reply = await http.post(path, json=body) if body is not None else await http.post(path)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_a_training_step_over_http(http: httpx.AsyncClient, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_checkpoint(other, config_of(tmp_path / "tiny"), random_tensors(config_of(tmp_path / "tiny"), 2))
    first = await say(http)
    assert (await http.get("/weight_info")).json()["weight_version"] is None
    assert (await post(http, "/pause?mode=wait"))["is_paused"]
    assert (await http.get("/is_paused")).json() == {"is_paused": True}
    assert (await post(http, "/update_weights", {"update_info": {"path": str(other), "weight_version": 3}}))[
        "weight_version"
    ] == 3
    assert not (await post(http, "/resume"))["is_paused"]
    second = await say(http)
    assert second != first
    refused = await http.post("/update_weights", json={"update_info": {"path": str(other), "weight_version": 2}})
    assert refused.status_code == 400
    assert "not newer than 3" in refused.text
    back = {
        "model_path": str(tmp_path / "tiny"),
        "weight_version": "back",
        "load_format": None,
        "keep_pause": False,
        "token_step": 0,
    }
    reply = await post(http, "/update_weights_from_disk", back)
    assert reply == {"success": True, "message": "weights of version back are served"}
    assert await say(http) == first
    failed = await http.post("/update_weights_from_disk", json={"model_path": str(tmp_path / "none")})
    assert (failed.status_code, failed.json()["success"]) == (400, False)
    missing = await http.post("/update_weights", json={"update_info": {"path": str(tmp_path / "none")}})
    assert missing.status_code == 400
    assert "there is no checkpoint directory" in missing.text
    unknown = await http.post("/update_weights_from_disk", json={"model_path": str(other), "torch_empty_cache": True})
    assert unknown.status_code == 400
    assert "torch_empty_cache" in unknown.text
    named = await http.post("/abort_requests", json={"request_ids": ["r"]})
    assert named.status_code == 400
    assert (await post(http, "/update_weight_version", {"new_version": "named"}))["weight_version"] == "named"

    assert (await post(http, "/sleep?level=1"))["is_sleeping"]
    assert (await http.get("/is_sleeping")).json() == {"is_sleeping": True}
    asleep = await http.post("/v1/completions", json={"model": "tiny", "prompt": "ab"})
    assert asleep.status_code == 503
    assert "serves nothing now" in asleep.text
    assert (await post(http, "/wake_up?tags=weights"))["is_sleeping"]
    assert not (await post(http, "/resume_memory_occupation", {"tags": ["kv_cache"]}))["is_sleeping"]
    assert (await post(http, "/release_memory_occupation", {}))["is_sleeping"]
    assert not (await post(http, "/resume_memory_occupation"))["is_sleeping"]
    assert await say(http) == first
    assert (await post(http, "/pause_generation", {"mode": "in_place"}))["is_paused"]
    assert (await http.post("/pause_generation", json={"mode": "retract"})).status_code == 400
    assert not (await post(http, "/continue_generation"))["is_paused"]
    assert (await http.post("/flush_cache")).status_code == 200
    assert await post(http, "/abort_requests") == {"aborted": []}

    user = {"Authorization": f"Bearer {USER}"}
    assert (await http.get("/weight_info", headers=user)).status_code == 403
    assert (await http.post("/sleep", headers=user)).status_code == 403


async def test_smgs_client_drives_a_training_step(http: httpx.AsyncClient, tmp_path: Path) -> None:
    """Through its gateway, which takes the server for a vLLM: with vLLM's words, then with SGLang's, which its client prefers."""
    other = write_checkpoint(tmp_path / "other", config_of(tmp_path / "tiny"), random_tensors(config_of(tmp_path / "tiny"), 2))
    first = await say(http)
    with smg(tmp_path, "--enable-rl", "--api-key", ADMIN, "--worker-urls", str(http.base_url)) as gateway:
        trainer = RL(gateway.base, ADMIN, timeout=60)
        await asyncio.to_thread(until_ready, trainer)

        async def every(path: str, body: Any = None, *, method: str = "POST", **params: Any) -> Any:
            """What the one engine answers."""
            result = await asyncio.to_thread(trainer.fanout, path, body, selector="engine=vllm", method=method, params=params)
            (answer,) = result.results.values()
            return answer.body

        assert (await every("pause", mode="keep"))["is_paused"]
        waiting = asyncio.create_task(say(http))
        assert (await every("update_weights", {"update_info": {"path": str(other), "weight_version": 3}}))["weight_version"] == 3
        assert not waiting.done()
        assert not (await every("resume"))["is_paused"]
        second = await waiting
        assert second != first

        def back() -> None:
            with paused(trainer, "engine=vllm", mode="in_place"):
                update = {"model_path": str(tmp_path / "tiny"), "weight_version": "back"}
                trainer.fanout("update_weights_from_disk", update, selector="engine=vllm")

        await asyncio.to_thread(back)
        assert (await every("weight_info", method="GET"))["weight_version"] == "back"
        assert await every("is_paused", method="GET") == {"is_paused": False}
    assert await say(http) == first


def until_ready(trainer: RL) -> None:
    """Until the gateway listens and knows the server."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if any(worker.health == "ready" for worker in trainer.workers()):
                return
        time.sleep(0.1)
    raise AssertionError("the gateway does not take the server")


async def test_without_keys_nobody_may(engine: LocalEngine) -> None:
    async with serving(engine) as servers, httpx.AsyncClient(base_url=servers.http, timeout=60) as client:
        reply = await client.post("/pause")
        assert reply.status_code == 403
        assert "a server with API keys" in reply.text
        assert await say(client)
