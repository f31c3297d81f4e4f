"""Questions that the bundled model was never trained on: the documents of the tasks that `jaxserve.eval` ships."""

from __future__ import annotations

import json
from pathlib import Path

OWN_TASKS = Path(__file__).parents[3] / "jaxserve" / "evaluation" / "tasks"  # chat messages
TEXT_TASKS = Path(__file__).with_name("tasks")  # the same, as finished prompts


def held_out(kind: str, count: int) -> list[tuple[str, str]]:
    """The first messages of a kind and their answers."""
    lines = (OWN_TASKS / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    return [(document["prompt"], document["answer"]) for document in map(json.loads, lines)]
