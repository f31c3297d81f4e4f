"""Tasks that the bundled model was never trained on, as lm-eval reads them: `python -m tests.interop.pico_tasks FOLDER`."""

from __future__ import annotations

import builtins
import json
import sys
import textwrap
from pathlib import Path
from random import Random

from examples.pico.tasks import MAKERS, Source, Task

COUNT = 40


def held_out(kind: str, count: int) -> list[Task]:
    """Different tasks of a kind, over numbers of two digits and words that no training task used."""
    words = [name for name in (*dir(builtins), *dir(str)) if name.isalpha() and name.islower()]
    source = Source(words, ["er", "st", "in", "on"], held_out=True, one_digit=0.0)
    dice, tasks = Random(kind), dict[str, Task]()
    while len(tasks) < count:
        task = MAKERS[kind](dice, source)
        tasks.setdefault(task.prompt, task)
    return list(tasks.values())


def write(folder: Path) -> None:
    """The files that the task descriptions beside this module name."""
    for kind in ("addition", "reversal"):
        lines = [json.dumps({"prompt": task.prompt, "answer": task.answer}) for task in held_out(kind, COUNT)]
        (folder / f"{kind}.jsonl").write_text("\n".join(lines) + "\n")
    source = Path(textwrap.__file__).read_text()[:3000]  # of the kind it was trained on, and longer than its context
    (folder / "source.jsonl").write_text(json.dumps({"text": source}) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
