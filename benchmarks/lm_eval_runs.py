"""Runs of lm-eval's evaluator on tasks of this repository, timed: what `evaluation.py` and its peer do alike.

Imports neither jaxserve nor torch: the peer's interpreter has the one, `evaluation.py`'s the other.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import time
from pathlib import Path
from typing import Any

from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager

TASKS = Path(__file__).resolve().parents[1] / "jaxserve" / "evaluation" / "tasks"
KEPT = ("exact_match,none", "acc,none", "bits_per_byte,none")


def run(model: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Evaluate a model on a job's tasks.

    Args:
        model: an instance of lm-eval's LM.
        job: {"tasks": names, "limit": documents a task or None, "shots": examples in each prompt}.

    Returns:
        {"seconds": of the evaluation, "cpu_seconds": of all threads of this process in it, "scores": by task, "documents": how
        many there were}.
    """
    os.environ["TQDM_DISABLE"] = "1"
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    manager = TaskManager(include_path=[TASKS], include_defaults=False)
    start, worked = time.perf_counter(), time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):  # its metrics print
        results = simple_evaluate(
            model=model,
            tasks=job["tasks"],
            task_manager=manager,
            num_fewshot=job["shots"],
            limit=job["limit"],
            bootstrap_iters=0,
            apply_chat_template=True,
            fewshot_as_multiturn=True,
            log_samples=False,
        )
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - worked
    scores = {
        name: {metric: round(float(values[metric]), 6) for metric in KEPT if metric in values}
        for name, values in results["results"].items()
    }
    documents = sum(entry["effective"] for entry in results["n-samples"].values())
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "scores": scores, "documents": documents}
