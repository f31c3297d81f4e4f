"""lm-eval asks the server for answers and for likelihoods, on tasks that the bundled model was never trained on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.interop import pico_tasks
from tests.interop.conftest import Gated
from tests.interop.programs import run

TASKS = Path(__file__).with_name("tasks")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pico_tasks.write(tmp_path)
    return tmp_path


def evaluate(pico: Gated, folder: Path, model: str, path: str, tasks: tuple[str, ...], *options: str) -> dict[str, Any]:
    """Results by task. Its tokenizer is the server's: the key goes there as `auth_token`, elsewhere by the environment."""
    key = pico.keys["acme"]
    arguments = f"model=pico,base_url={pico.base_url}/{path},auth_token={key},num_concurrent=4,max_length=512"
    command = [sys.executable, "-m", "lm_eval", "run", "--model", model, "--model_args", arguments]
    command += ["--tasks", ",".join(tasks), "--include_path", str(TASKS), "--output_path", str(folder / "out"), *options]
    run(command, cwd=folder, OPENAI_API_KEY=key, HF_HOME=str(folder / "cache"))
    (file,) = (folder / "out").rglob("results_*.json")
    results: dict[str, Any] = json.loads(file.read_text())["results"]
    assert set(results) == set(tasks)
    return results


def test_local_chat_completions(pico: Gated, folder: Path) -> None:
    tasks = ("pico_addition", "pico_reversal")
    results = evaluate(pico, folder, "local-chat-completions", "chat/completions", tasks, "--apply_chat_template")
    assert {task: results[task]["exact_match,none"] >= 0.9 for task in tasks} == dict.fromkeys(tasks, True), results


def test_local_completions(pico: Gated, folder: Path) -> None:
    """Answers, the likeliest of four answers, likelihoods, and those of a text longer than the context; all as token ids."""
    answers = ("pico_addition_text", "pico_reversal_text")
    likelihoods = ("pico_addition_choice", "pico_addition_likelihood")
    results = evaluate(pico, folder, "local-completions", "completions", (*answers, *likelihoods, "pico_source"))
    reached = {task: results[task]["exact_match,none"] for task in answers}
    reached |= {task: results[task]["acc,none"] for task in likelihoods}
    assert all(accuracy >= 0.9 for accuracy in reached.values()), reached
    assert 0.0 < results["pico_source"]["bits_per_byte,none"] < 2.5
