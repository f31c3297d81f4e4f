"""lm-eval's own `hf` model as a process of its own: reads one JSON job a line, answers one JSON line.

    {"tasks": ["pico_choices"], "limit": 40, "shots": 0, "batch_size": 1} -> {"seconds": 3.21, "scores": {...}, ...}

Started by `evaluation.py`, in the repository's root, with an interpreter that has lm-eval, torch and transformers.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version


def main() -> None:
    """Load the checkpoint argv[1] in dtype argv[2] with argv[3] threads, then do jobs."""
    start = time.perf_counter()
    import torch  # noqa: PLC0415  (only this process has torch)
    from lm_eval.models.huggingface import HFLM  # noqa: PLC0415

    from benchmarks.lm_eval_runs import run  # noqa: PLC0415

    torch.set_num_threads(int(sys.argv[3]))
    model = HFLM(sys.argv[1], device="cpu", dtype=sys.argv[2])
    versions = {name: version(name) for name in ("torch", "transformers", "lm_eval")}
    print(json.dumps({"load_seconds": time.perf_counter() - start, "versions": versions}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        model.batch_size_per_gpu = job["batch_size"]
        print(json.dumps(run(model, job)), flush=True)


if __name__ == "__main__":
    main()
