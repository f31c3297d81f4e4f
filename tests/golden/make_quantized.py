"""Writes tests/data/quantized.json: what transformers says of the checkpoints that `jaxserve.quantize` writes.

For each golden model and scheme: a sum of the checkpoint, so that it is known again, and greedy tokens after some prompts.

python -m tests.golden.make_quantized FOLDER             # where jaxserve is: writes the checkpoints
pip install torch==2.13.0 transformers compressed-tensors==0.20.0
python -m tests.golden.make_quantized FOLDER --tokens    # where transformers is: loads them
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

DATA = Path(__file__).parents[1] / "data" / "quantized.json"
GOLDENS = Path(__file__).parent / "data"
NEW_TOKENS = 24
CLEAR = 5e-3  # smallest gap between the best two logits of any greedy step
PROMPTS = (4, 8, 12)
CASES = {
    "llama-linear": ("fp8", "int8", "w8a8", "w4a16", "w4a16-asym"),
    "qwen2-gqa7": ("fp8", "int8"),
    "gemma2-plain": ("fp8", "w4a16"),
    "phi3-window": ("int8", "w4a16"),
}
"""Schemes of golden models. Of those in bfloat16 transformers rounds what it dequantizes once more, which 8 bits do not feel."""


def arguments(model: str, scheme: str, folder: Path) -> list[str]:
    """Of the command that writes a checkpoint."""
    groups = ["--group-size", "32"] if scheme.startswith("w4a16") else []
    return [str(GOLDENS / model), str(folder / f"{model}-{scheme}"), "--scheme", scheme, *groups]


def digest(directory: Path) -> str:
    """Of the weights and of how they are to be read."""
    config = json.loads((directory / "config.json").read_text())
    told = json.dumps(config["quantization_config"], sort_keys=True).encode()
    return hashlib.sha256((directory / "model.safetensors").read_bytes() + told).hexdigest()


def write(folder: Path) -> None:
    from jaxserve import quantize

    for model, schemes in CASES.items():
        for scheme in schemes:
            assert quantize.main(arguments(model, scheme, folder)) == 0


def tokens(folder: Path) -> None:
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig

    from tests.golden.make import generate

    torch.set_num_threads(1)
    told: dict[str, object] = {}
    for model, schemes in CASES.items():
        prompts = json.loads((GOLDENS / model / "greedy.json").read_text())["prompts"]
        for scheme in schemes:
            directory = folder / f"{model}-{scheme}"
            # The weights alone, as jaxserve serves them: activations are not rounded once it is dequantized.
            weights = CompressedTensorsConfig(dequantize=True)
            loaded = AutoModelForCausalLM.from_pretrained(
                directory, dtype=torch.float32, attn_implementation="eager", quantization_config=weights
            ).eval()
            entries = []
            for number in PROMPTS:
                greedy, logits = generate(loaded, prompts[number], NEW_TOKENS)
                best = np.sort(logits, axis=-1)[:, -2:]
                if float((best[:, 1] - best[:, 0]).min()) > CLEAR:
                    entries.append({"prompt": number, "greedy": greedy})
            print(directory.name, len(entries))
            told[directory.name] = {"digest": digest(directory), "answers": entries}
    DATA.write_text(json.dumps(told, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    (tokens if "--tokens" in sys.argv else write)(Path(sys.argv[1]))
