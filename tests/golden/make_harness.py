"""Makes harness.json, what lm-eval's own `hf` model answers: python -m tests.golden.make_harness

Needs the `parity` extra and lm-eval's `hf` extra. Computed in float32; nothing in it is random.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from lm_eval.models.huggingface import HFLM

from tests.golden.harness import ANSWERS, asked, scored, write_checkpoint


def main() -> None:
    """Ask the model, and write what it says."""
    torch.set_num_threads(1)  # sums in one order: the same answers on every machine of a kind
    with tempfile.TemporaryDirectory() as folder:
        model = HFLM(str(write_checkpoint(Path(folder) / "tiny")), device="cpu", dtype="float32", batch_size=4)
        answers = {"requests": asked(model), "tasks": scored(model, chat=False), "chat": scored(model, chat=True)}
    ANSWERS.write_text(json.dumps(answers, indent=1) + "\n")


if __name__ == "__main__":
    main()
