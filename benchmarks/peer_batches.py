"""HF transformers' batched generate as a process of its own: reads one JSON job a line, answers one JSON line.

    {"prompts": [[3, 4], [5]], "outputs": [8, 4], "rows": 16} -> {"seconds": 3.21}

Prompts are sorted by length and padded on the left, `rows` at a time; a batch runs until its longest output has ended, as it
does where outputs end by themselves. Started by `batch.py` with an interpreter that has torch and transformers; imports nothing
of jaxserve.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Build the model of config.json in argv[1] in dtype argv[2] with argv[3] threads, then answer jobs."""
    import torch  # noqa: PLC0415  (only this process has torch)
    import transformers  # noqa: PLC0415

    directory, dtype, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    fields = json.loads((directory / "config.json").read_text())
    config = transformers.LlamaConfig(**{name: value for name, value in fields.items() if name != "architectures"})
    model = transformers.LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()

    def generate(prompts: list[list[int]], count: int) -> None:
        width = max(map(len, prompts))
        tokens = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with torch.inference_mode():
            model.generate(
                tokens, attention_mask=mask, do_sample=False, min_new_tokens=count, max_new_tokens=count, pad_token_id=0
            )

    generate([[3, 4], [5]], 2)
    print(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__}), flush=True)
    for line in sys.stdin:
        job: dict[str, Any] = json.loads(line)
        order = sorted(zip(job["prompts"], job["outputs"], strict=True), key=lambda one: len(one[0]), reverse=True)
        start = time.perf_counter()
        for at in range(0, len(order), job["rows"]):
            batch = order[at : at + job["rows"]]
            generate([prompt for prompt, _ in batch], max(count for _, count in batch))
        print(json.dumps({"seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main()
