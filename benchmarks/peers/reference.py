"""What HF transformers says of outputs: `PYTHON -m benchmarks.peers.reference DIRECTORY DTYPE`, JSON in and out.

Reads [{"prompt": [ids], "output": [ids]}, ...] and writes for each the gaps: by how much the best logit is above that of the
token that was chosen, token by token. All zero: greedy decoding would have given the same output, since each token is the best
one after those before it. One pass over each text, so this takes no longer than a prefill.
"""

from __future__ import annotations

import json
import sys

import torch
import transformers


def main() -> None:
    """Read, compute, write."""
    directory, dtype = sys.argv[1:]
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()
    answers = []
    for job in json.load(sys.stdin):
        prompt, output = job["prompt"], torch.tensor(job["output"])
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *job["output"]]])).logits[0, len(prompt) - 1 : -1].float()
        gaps = logits.max(dim=1).values - logits.gather(1, output[:, None])[:, 0]
        answers.append({"gaps": gaps.tolist(), "deviation": float(logits.std())})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
