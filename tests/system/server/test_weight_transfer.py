"""A trainer in one process gives its weights to a server in others: all of them are served, or none."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from jaxserve import LLM, SamplingParams
from tests.support.live import random_tensors, write_checkpoint
from tests.support.send_weights import SPOILT
from tests.support.serve_process import ROOT, Process, Served, environment
from tests.support.tiny_checkpoint import write_tiny_checkpoint

ADMIN, USER = "an-admin's-key", "a-user's-key"
SETTINGS: dict[str, Any] = {
    "max_num_seqs": 2,
    "before_ready": "fewest",
    "max_num_batched_tokens": 16,
    "num_pages": 32,
    "page_size": 4,
}
PROMPT, TOKENS = [3, 1, 4, 1, 5], 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints "1" and "2", of other weights of one model, and API keys."""
    path = tmp_path_factory.mktemp("transfer")
    for seed in (1, 2):
        directory = write_tiny_checkpoint(path / str(seed), context=32)
        config = json.loads((directory / "config.json").read_text())
        write_checkpoint(directory, config, random_tensors(config, seed))
    keys = [(ADMIN, "true"), (USER, "false")]
    lines = [
        f'[[key]]\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\ntenant = "acme"\nadmin = {admin}\n'
        for key, admin in keys
    ]
    (path / "keys.toml").write_text("".join(lines))
    return path


@pytest.fixture(scope="module")
def oracle(folder: Path) -> dict[int, list[int]]:
    """What engines say that loaded the weights from disk."""
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    llms = {seed: LLM(str(folder / str(seed)), **SETTINGS) for seed in (1, 2)}
    return {seed: llm.generate({"prompt_token_ids": PROMPT}, params)[0].outputs[0].token_ids for seed, llm in llms.items()}


@pytest.fixture(scope="module")
def server(served: Served, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    flags = [part for name, value in SETTINGS.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    keys = str(folder / "keys.toml")
    yield from served(tmp_path_factory.mktemp("server"), "--model", str(folder / "1"), "--keys", keys, *flags)


@pytest.fixture
def http(server: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.http, timeout=60, headers={"Authorization": f"Bearer {ADMIN}"}) as client:
        yield client


def said(http: httpx.Client) -> tuple[list[int], Any]:
    """The tokens of an answer, and whose weights they are of."""
    asked = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0.0, "ignore_eos": True, "return_token_ids": True}
    reply = http.post("/v1/completions", json=asked)
    assert reply.status_code == 200, reply.text
    (choice,) = reply.json()["choices"]
    return choice["token_ids"], choice.get("weight_versions")


def trainer(server: Process, folder: Path, seed: int, version: int, *what: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code of a trainer's process, and what came of all that it sent."""
    arguments = [server.http, ADMIN, str(folder / "1" / "config.json"), str(seed), str(version), *what]
    line = [sys.executable, "-m", "tests.support.send_weights", *arguments]
    ran = subprocess.run(line, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode <= 0, ran.stderr
    return ran.returncode, [json.loads(told) for told in ran.stdout.splitlines()]


def test_a_trainer_in_another_process(server: Process, http: httpx.Client, folder: Path, oracle: dict[int, list[int]]) -> None:
    assert oracle[1] != oracle[2]
    assert said(http) == (oracle[1], None)

    code, told = trainer(server, folder, 2, 3, "dies")
    assert (code, told) == (-9, [])
    info = http.get("/weight_info").json()
    assert (info["weight_version"], 0 < info["received_bytes"] < info["wanted_bytes"]) == (None, True)
    assert said(http) == (oracle[1], None)

    code, (shape, missing, nan) = trainer(server, folder, 2, 3, "shape", "missing", "nan")
    assert code == 0
    assert f"1 of the wrong shape: {SPOILT}" in shape["error"]
    assert f"1 missing: {SPOILT}" in missing["error"]
    assert f"{SPOILT} has 1 in" in nan["error"]
    assert "the first at [1, 2]" in nan["error"]
    assert said(http) == (oracle[1], None)
    assert http.get("/weight_info").json()["received_bytes"] == 0

    code, told = trainer(server, folder, 2, 3, "state", "whole")
    assert (code, told[0]) == (0, {"version": 3})
    assert "version 3 is not newer than 3" in told[1]["error"]
    assert said(http) == (oracle[2], [{"version": 3, "start": 0, "end": TOKENS}])


def test_what_is_refused(http: httpx.Client) -> None:
    kind = {"content-type": "application/octet-stream"}
    none = http.post("/update_weights?update_id=u", content=b"1234", headers=kind)
    assert (none.status_code, none.json()["error"]["code"]) == (409, "conflict")
    assert "POST /start_weight_update first" in none.text
    assert http.post("/update_weights", content=b"1234", headers=kind).status_code == 400
    disk = http.post("/update_weights", json={"update_info": {"path": "/nowhere"}})
    assert "there is no checkpoint directory" in disk.text
    engine = http.post("/init_weight_transfer_engine", json={"init_info": {"backend": "nccl"}})
    assert (engine.status_code, engine.json()["error"]["param"]) == (400, "init_info.backend")
    assert http.post("/init_weight_transfer_engine").status_code == 200
    names = {"names": ["model.norm.weight"], "dtype_names": ["float32"], "shapes": [[1]]}
    wrong = http.post("/start_weight_update", json=names)
    assert wrong.status_code == 400
    assert "missing" in wrong.text
    undrafted = http.post("/start_draft_weight_update", json=names)
    assert undrafted.status_code == 409
    assert "there is no draft model" in undrafted.text
    assert http.post("/finish_weight_update", json={"weight_version": 9}).status_code == 409
    assert http.post("/shutdown_weight_transfer_engine").status_code == 200

    first = http.post("/weight_checker", json={"action": "checksum"}).json()["checksums"]
    assert {name[:7] for name in first} == {"dp0:tp0"}
    name = next(iter(first))
    compared = http.post("/weight_checker", json={"action": "compare", "baseline": {**first, name: "0", "more": "1"}})
    assert compared.json() == {"match": False, "mismatches": sorted([name, "more"])}
    compared = http.post("/weight_checker", json={"action": "compare", "baseline": first})
    assert compared.json() == {"match": True, "mismatches": []}
    assert http.post("/weight_checker", json={"action": "compare"}).status_code == 400
    assert http.get("/get_world_size").json() == {"world_size": 1}
    assert http.get("/get_world_size?include_dp=false").json() == {"world_size": 1}
    assert http.post("/weight_checker", json={"action": "reset"}).json() == {"status": "reset"}
    assert http.get("/weight_info").json()["weight_version"] == "reset"

    long = b"1" * (64 * 2**20 + 1)
    assert http.post("/update_weights?update_id=u", content=long, headers=kind).status_code == 413
    user = {"Authorization": f"Bearer {USER}"}
    for path in (
        "/init_weight_transfer_engine",
        "/start_weight_update",
        "/start_draft_weight_update",
        "/update_weights",
        "/finish_weight_update",
    ):
        assert http.post(path, headers=user).status_code == 403
