"""A server started with a command line for vLLM, a key and two names; and loaded at its URL with lengths that nobody gave."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.support.serve_process import Process, Served, environment
from tests.support.tiny_checkpoint import CONTEXT, write_tiny_checkpoint

KEY = "sesame-1"
LINE = (
    *(
        "--load-format",
        "dummy",
        "--served-model-name",
        "first",
        "second",
        "--gpu-memory-utilization",
        "0.5",
        "--trust-remote-code",
    ),
    *(
        "--enable-prefix-caching",
        "--max_num_seqs=2",
        "--max-num-batched-tokens",
        "16",
        "--block-size",
        "8",
        "--api-key",
        KEY,
        "two",
    ),
)

pytestmark = pytest.mark.one_server("vLLM's spellings are of a command line, and a fleet has a file")


@pytest.fixture(scope="module")
def server(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("served")
    yield from served(folder, "--model", str(write_tiny_checkpoint(folder / "tiny")), *LINE)


def test_what_changes_nothing_is_told_and_keys_are_not(server: Process) -> None:
    told = server.err.read_text()
    assert "--trust-remote-code changes nothing: code that comes with a checkpoint is never run" in told
    assert "setting  page-size: 8" in told
    assert "no API keys" not in told
    assert KEY not in told


@pytest.mark.parametrize("key", [KEY, "two"])
def test_each_key_opens_what_operators_do_too(server: Process, key: str) -> None:
    with httpx.Client(base_url=server.http, headers={"Authorization": f"Bearer {key}"}, timeout=60) as client:
        assert client.post("/reset_prefix_cache").status_code == 200
        assert client.get("/v1/models").status_code == 200


def test_without_the_key_nobody_is_let_in(server: Process) -> None:
    for headers in ({}, {"Authorization": "Bearer first"}):
        assert httpx.get(f"{server.http}/v1/models", headers=headers, timeout=60).status_code == 401
    assert httpx.get(f"{server.http}/health", timeout=60).status_code == 200


def test_every_name_is_the_model(server: Process) -> None:
    with openai.OpenAI(base_url=f"{server.http}/v1", api_key=KEY, max_retries=0) as sdk:
        assert [model.id for model in sdk.models.list()] == ["first", "second"]
        assert sdk.models.retrieve("second").id == "second"
        replies = [sdk.completions.create(model=name, prompt="a", max_tokens=3, temperature=0) for name in ("first", "second")]
        assert [reply.model for reply in replies] == ["first", "first"]
        assert replies[0].choices[0].text == replies[1].choices[0].text
        with pytest.raises(openai.NotFoundError):
            sdk.completions.create(model="third", prompt="a")


def test_a_load_fits_the_context_by_itself(server: Process, tmp_path: Path) -> None:
    figures = tmp_path / "load.json"
    command = [sys.executable, "-m", "jaxserve.bench", "serving", server.http, "--api-key", KEY, "--json", str(figures)]
    load = ("--requests", "6", "--warmup", "0", "--concurrency", "2")
    ended = subprocess.run([*command, *load], env=environment(), capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(figures.read_text())
    assert report["finished"] == 6
    assert 6 * 16 < report["prompt_tokens"] < 6 * CONTEXT
