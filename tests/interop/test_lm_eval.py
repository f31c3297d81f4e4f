"""lm-eval asks the server for answers and for likelihoods, on tasks that the bundled model was never trained on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.interop.conftest import Gated
from tests.interop.programs import run
from tests.interop.questions import OWN_TASKS, TEXT_TASKS


def evaluate(
    pico: Gated, folder: Path, model: str, path: str, include: Path, tasks: tuple[str, ...], *options: str
) -> dict[str, Any]:
    """Results by task. Its tokenizer is the server's: the key goes there as `auth_token`, elsewhere by the environment."""
    key = pico.keys["acme"]
    arguments = f"model=pico,base_url={pico.base_url}/{path},auth_token={key},num_concurrent=4,max_length=512"
    command = [sys.executable, "-m", "lm_eval", "run", "--model", model, "--model_args", arguments, "--limit", "40"]
    command += ["--tasks", ",".join(tasks), "--include_path", str(include), "--output_path", str(folder / "out"), *options]
    run(command, cwd=folder, OPENAI_API_KEY=key, HF_HOME=str(folder / "cache"))
    (file,) = (folder / "out").rglob("results_*.json")
    results: dict[str, Any] = json.loads(file.read_text())["results"]
    assert set(results) == set(tasks)
    return results


def test_local_chat_completions(pico: Gated, tmp_path: Path) -> None:
    tasks = ("pico_addition", "pico_reversal")
    path = "chat/completions"
    results = evaluate(pico, tmp_path, "local-chat-completions", path, OWN_TASKS, tasks, "--apply_chat_template")
    assert {task: results[task]["exact_match,none"] >= 0.9 for task in tasks} == dict.fromkeys(tasks, True), results


def test_local_completions(pico: Gated, tmp_path: Path) -> None:
    """Answers, the likeliest of four answers, likelihoods, and those of a text longer than the context; all as token ids."""
    answers = ("pico_addition_text", "pico_reversal_text")
    likelihoods = ("pico_addition_choice_text", "pico_addition_likelihood_text")
    tasks = (*answers, *likelihoods, "pico_text_unseen")
    results = evaluate(pico, tmp_path, "local-completions", "completions", TEXT_TASKS, tasks)
    reached = {task: results[task]["exact_match,none"] for task in answers}
    reached |= {task: results[task]["acc,none"] for task in likelihoods}
    assert all(accuracy >= 0.9 for accuracy in reached.values()), reached
    assert 0.0 < results["pico_text_unseen"]["bits_per_byte,none"] < 2.5
