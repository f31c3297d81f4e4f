"""Results of evaluations that never ran, of the shape that lm-eval gives."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from jaxserve.evaluation.result import FORMAT, Result

Right = Sequence[float]
Texts = Sequence[tuple[float, int]]


def made_result(
    name: str = "model",
    *,
    right: Mapping[str, Right] | None = None,
    texts: Mapping[str, Texts] | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    documents: str = "the same",
    **settings: Any,
) -> Result:
    """Accuracies from right (1.0) and wrong (0.0) answers, perplexities from (log-likelihood, bytes), means of tasks."""
    results: dict[str, dict[str, Any]] = {}
    values: dict[str, dict[str, Any]] = {}
    for task, answers in (right or {}).items():
        stderr = statistics.stdev(answers) / math.sqrt(len(answers)) if len(answers) > 1 else None
        results[task] = {"sample_len": len(answers), "acc,none": statistics.fmean(answers), "acc_stderr,none": stderr}
        values[task] = {"sha256": documents, "acc,none": list(answers)}
    for task, scored in (texts or {}).items():
        rate = sum(score for score, _ in scored) / sum(size for _, size in scored)
        results[task] = {"sample_len": len(scored), "bits_per_byte,none": -rate / math.log(2), "bits_per_byte_stderr,none": "N/A"}
        results[task] |= {"byte_perplexity,none": math.exp(-rate), "byte_perplexity_stderr,none": "N/A"}
        pairs = [list(pair) for pair in scored]
        values[task] = {"sha256": documents, "bits_per_byte,none": pairs, "byte_perplexity,none": pairs}
    for group, members in (groups or {}).items():
        figures = [results[member] for member in members]
        results[group] = {
            "sample_len": sum(figure["sample_len"] for figure in figures),
            "acc,none": statistics.fmean(figure["acc,none"] for figure in figures),
            "acc_stderr,none": math.hypot(*(figure["acc_stderr,none"] for figure in figures)) / len(figures),
        }
    better = {"acc": True, "bits_per_byte": False, "byte_perplexity": False}
    header = {
        "format": FORMAT,
        "model": {"name": name, "path": f"/runs/{name}", "architecture": "Llama", "parameters": 1000, "dtype": "float32"},
        "versions": {"lm_eval": "0.4.13"},
        "settings": {"limit": None, **settings},
        "seconds": {"load": 1.0, "evaluate": 2.0},
        "tokens": {"prompt": 100, "cached": 25, "output": 20, "per_second": 60.0, "prefix_hit_rate": 0.25},
        "notes": [],
        "values": values,
    }
    harness = {
        "results": results,
        "group_subtasks": {group: list(members) for group, members in (groups or {}).items()},
        "higher_is_better": dict.fromkeys(results, better),
        "n-samples": {task: {"original": 1000, "effective": figures["sample_len"]} for task, figures in results.items()},
        "versions": dict.fromkeys(results, 1.0),
        "n-shot": dict.fromkeys(results, 0),
    }
    return Result(header, harness)
