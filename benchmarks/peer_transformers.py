"""HF transformers' generate as a process of its own: reads one JSON request a line, answers one JSON line.

    {"rows": 16, "prompt": 128, "output": 128} -> {"seconds": 3.21, "first": 0.8, "step": 0.02}

`first` is when the first token of all rows was there, `step` what each further one took. Started by `engine.py` and `hybrid.py`
with an interpreter that has torch and transformers; imports nothing of jaxserve.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main() -> None:
    """Build the model of config.json in argv[1] in dtype argv[2] with argv[3] threads, then answer requests."""
    import torch  # noqa: PLC0415  (only this process has torch)
    import transformers  # noqa: PLC0415

    directory, dtype, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    fields = json.loads((directory / "config.json").read_text())
    kind, given = fields["model_type"], {name: fields[name] for name in fields if name not in ("architectures", "model_type")}
    config = transformers.AutoConfig.for_model(kind, **given)
    model = transformers.AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype)).eval()
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    print(json.dumps({"ready": True, "versions": versions}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        tokens = torch.randint(3, config.vocab_size, (request["rows"], request["prompt"]))
        count = request["output"]
        steps: list[float] = []

        def stepped(*_: object, steps: list[float] = steps, rows: int = request["rows"]) -> object:
            steps.append(time.perf_counter())
            return torch.zeros(rows, dtype=torch.bool)

        start = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                do_sample=False,
                min_new_tokens=count,
                max_new_tokens=count,
                stopping_criteria=[stepped],
            )
        seconds, first = time.perf_counter() - start, steps[0] - start
        step = (seconds - first) / (count - 1) if count > 1 else 0.0
        print(json.dumps({"seconds": seconds, "first": first, "step": step}), flush=True)


if __name__ == "__main__":
    main()
