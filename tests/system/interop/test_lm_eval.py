"""lm-eval asks the server for answers and for likelihoods, on tasks that the bundled model was never trained on.

And then an engine in this process, which must come to the same.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager

from jaxserve.evaluation.model import JaxserveLM
from jaxserve.llm import LLM
from tests.system.interop.conftest import Gated
from tests.system.interop.programs import run
from tests.system.interop.questions import OWN_TASKS, TEXT_TASKS

ANSWERS = ("pico_addition_text", "pico_reversal_text")
LIKELIHOODS = ("pico_addition_choice_text", "pico_addition_likelihood_text")
TEXT = "pico_text_unseen"
LIMIT = 40
CONTEXT = 512
WITHOUT_JAXSERVE = """
import runpy, sys

class Blocked:  # the editable installation and the current folder would both offer it
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jaxserve", "server", "pallas_kernels", "sharding", "tests"):
            raise ModuleNotFoundError(f"no module named {name!r}: the harness has an environment of its own", name=name)

sys.meta_path.insert(0, Blocked())
runpy.run_module("lm_eval", run_name="__main__", alter_sys=True)
"""


def evaluate(
    pico: Gated, folder: Path, model: str, path: str, include: Path, tasks: tuple[str, ...], *options: str
) -> dict[str, Any]:
    """Results by task, of a harness that has no jaxserve beside it.

    Its tokenizer is the server's: the key goes there as `auth_token`, elsewhere by the environment.
    """
    key = pico.keys["acme"]
    arguments = f"model=pico,base_url={pico.base_url}/{path},auth_token={key},num_concurrent=4,max_length={CONTEXT}"
    command = [sys.executable, "-c", WITHOUT_JAXSERVE, "run", "--model", model, "--model_args", arguments, "--limit", str(LIMIT)]
    command += ["--tasks", ",".join(tasks), "--include_path", str(include), "--output_path", str(folder / "out"), *options]
    run(command, cwd=folder, OPENAI_API_KEY=key, HF_HOME=str(folder / "cache"))
    (file,) = (folder / "out").rglob("results_*.json")
    results: dict[str, Any] = json.loads(file.read_text())["results"]
    assert set(results) == set(tasks)
    return results


def test_local_chat_completions(pico: Gated, tmp_path: Path) -> None:
    tasks = ("pico_addition", "pico_reversal")
    path, elsewhere = "chat/completions", tmp_path / "copied"
    shutil.copytree(OWN_TASKS, elsewhere, ignore=shutil.ignore_patterns("__pycache__"))
    results = evaluate(pico, tmp_path, "local-chat-completions", path, elsewhere, tasks, "--apply_chat_template")
    assert {task: results[task]["exact_match,none"] >= 0.9 for task in tasks} == dict.fromkeys(tasks, True), results


@pytest.fixture(scope="module")
def completions(pico: Gated, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Answers, the likeliest of four answers, likelihoods, and those of a text longer than the context; all as token ids."""
    tasks = (*ANSWERS, *LIKELIHOODS, TEXT)
    return evaluate(pico, tmp_path_factory.mktemp("lm_eval"), "local-completions", "completions", TEXT_TASKS, tasks)


def accuracies(results: dict[str, Any]) -> dict[str, float]:
    exact = {task: results[task]["exact_match,none"] for task in ANSWERS}
    return exact | {task: results[task]["acc,none"] for task in LIKELIHOODS}


def test_local_completions(completions: dict[str, Any]) -> None:
    reached = accuracies(completions)
    assert all(accuracy >= 0.9 for accuracy in reached.values()), reached
    assert 0.0 < completions[TEXT]["bits_per_byte,none"] < 2.5


@pytest.mark.filterwarnings("ignore")  # of the harness and its metrics
def test_an_engine_in_this_process_comes_to_the_same(completions: dict[str, Any]) -> None:
    """As `local-completions` sees the model: without BOS of its own, and in windows that leave a token to generate."""
    llm = LLM("pico", max_num_seqs=4, max_num_batched_tokens=32, before_ready="fewest")
    results = simple_evaluate(
        model=JaxserveLM(llm, max_length=CONTEXT - 2, add_bos_token=False),
        tasks=[*ANSWERS, *LIKELIHOODS, TEXT],
        task_manager=TaskManager(include_path=[TEXT_TASKS], include_defaults=False),
        limit=LIMIT,
        bootstrap_iters=0,
    )["results"]
    # In bfloat16 a step of another size may decide a question that is nearly a tie.
    assert accuracies(results) == pytest.approx(accuracies(completions), abs=1.01 / LIMIT)
    assert results[TEXT]["bits_per_byte,none"] == pytest.approx(completions[TEXT]["bits_per_byte,none"], rel=1e-3)
