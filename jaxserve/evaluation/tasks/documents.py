"""The documents of the tasks beside this file, as the harness asks for them: held in memory, so that no cache is written.

It needs nothing but what the harness has, so that a copy of this folder serves an lm-eval without jaxserve.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from datasets import Dataset

TASKS = Path(__file__).parent


def read(*, name: str, **_: Any) -> dict[str, Dataset]:
    """The splits of a file: `test`, and `fewshot` where it has examples for prompts.

    A task names it as its `custom_dataset`, and the harness gives whatever the task's metadata hold besides `name`.
    """
    lines = (TASKS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    splits: dict[str, list[dict[str, Any]]] = {"test": []}
    for document in map(json.loads, lines):
        splits.setdefault(document.pop("split", "test"), []).append(document)
    return {split: Dataset.from_list(documents) for split, documents in splits.items()}
