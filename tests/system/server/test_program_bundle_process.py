"""Programs that one process compiles and saves serve another, which compiles no step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import openai
import pytest

from tests.support.serve_process import FREE_PORTS, ROOT, environment, start
from tests.support.tiny_checkpoint import write_tiny_checkpoint

SHAPES = ("--max-num-seqs", "2", "--max-num-batched-tokens", "16")
CONTEXT = ("--max-model-len", "128")
COMPILED_STEP = "XLA compilation of jit(forward)"


def serve(folder: Path, *arguments: str) -> tuple[str, str]:
    """What a server answers, and what it logged: jax logs what it compiles."""
    folder.mkdir()
    process = start(folder, *arguments, "--load-format", "dummy", "--compilation-cache-dir", "none", *FREE_PORTS)
    try:
        with openai.OpenAI(base_url=f"{process.http}/v1", api_key="none", max_retries=0) as client:
            whole = client.completions.create(
                model="tiny", prompt="hello", max_tokens=24, temperature=0, logprobs=2, extra_body={"ignore_eos": True}
            )
    finally:
        process.popen.kill()
        process.popen.wait()
    choice = whole.choices[0]
    assert choice.logprobs is not None
    return f"{choice.text!r} {choice.logprobs.token_logprobs}", process.err.read_text()


def test_a_server_compiles_no_step_that_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs' cache has more pages than a server chooses here: it takes theirs.

    The second server's sequences are shorter: the programs are not its own, and it says why.
    """
    model, programs = write_tiny_checkpoint(tmp_path / "tiny"), tmp_path / "programs"
    steps = ("--rows", "all", "--tokens", "all", "--target", "cpu", "--output", str(programs))
    command = [sys.executable, "-m", "jaxserve.compile", str(model), *steps, *SHAPES, *CONTEXT, "--num-pages", "40"]
    told = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True, timeout=300)
    assert "saved 8 programs" in told.stdout
    monkeypatch.setenv("JAX_LOG_COMPILES", "1")
    loaded, log = serve(tmp_path / "loads", str(model), *SHAPES, *CONTEXT, "--programs", str(programs))
    assert "loading programs: 8/8" in log
    assert COMPILED_STEP not in log
    assert "624 in the KV cache" in log
    compiled, log = serve(tmp_path / "compiles", str(model), *SHAPES, "--max-model-len", "64", "--programs", str(programs))
    assert log.count(COMPILED_STEP) == 2
    assert f"the programs in {programs} are for another engine, compiling: max_model_len: saved 128, here 64" in log
    assert loaded == compiled
