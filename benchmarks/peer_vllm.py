"""vLLM's engine as a process of its own: reads one JSON request a line, answers one JSON line.

    {"rows": 16, "prompt": 128, "output": 33} -> {"first": 0.8, "step": 0.09}

`first` is when all rows had a token, in seconds, and `step` what a token of all rows took from then on. Started by `hybrid.py`
with an interpreter that has vllm; imports nothing of jaxserve.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def answer(engine: Any, params: Any, rows: list[list[int]]) -> dict[str, float]:
    """Run these prompts at once; the first that is done ends what is timed."""
    start, counts, first, most = time.perf_counter(), [0] * len(rows), 0.0, 0
    for number, tokens in enumerate(rows):
        engine.add_request(str(number), {"prompt_token_ids": tokens}, params)
    step = 0.0
    while engine.has_unfinished_requests():
        for output in engine.step():
            counts[int(output.request_id)] = len(output.outputs[0].token_ids)
        now = time.perf_counter() - start
        if not first and all(counts):
            first, most = now, max(counts)  # while others' prompts were computed the first rows went on
            assert most < params.max_tokens or most == 1, "a row was done before all had a token: ask for more output"
        elif first and not step and max(counts) == params.max_tokens:
            step = (now - first) / (params.max_tokens - most)
    return {"first": first, "step": step}


def main() -> None:
    """Load the config.json in argv[1] with dummy weights, for contexts of argv[2] and argv[3] rows, then answer requests."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM's processes write to stdout, too
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415  (only this process has torch and vllm)
    import vllm  # noqa: PLC0415

    engine = vllm.LLM(
        model=sys.argv[1],
        load_format="dummy",
        dtype="bfloat16",
        skip_tokenizer_init=True,
        max_model_len=int(sys.argv[2]),
        max_num_seqs=int(sys.argv[3]),
        enable_prefix_caching=False,
    ).llm_engine
    rng, versions = np.random.default_rng(0), {"vllm": vllm.__version__, "torch": torch.__version__}
    print(json.dumps({"ready": True, "versions": versions}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        params = vllm.SamplingParams(temperature=0.0, max_tokens=request["output"], ignore_eos=True, detokenize=False)
        prompts = rng.integers(3, 32000, (request["rows"], request["prompt"])).tolist()
        print(json.dumps(answer(engine, params, prompts)), file=answers, flush=True)


if __name__ == "__main__":
    main()
