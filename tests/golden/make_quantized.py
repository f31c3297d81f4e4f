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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


def answers(directory: Path, prompts: Mapping[int, list[int]]) -> list[dict[str, Any]]:
    """What transformers with compressed-tensors says after prompts, by their numbers, but for those with a near-tie."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig

    from tests.golden.make import generate

    # The weights alone, as jaxserve serves them: activations are not rounded once it is dequantized.
    weights = CompressedTensorsConfig(dequantize=True)
    loaded = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", quantization_config=weights
    ).eval()
    entries = []
    for number, prompt in prompts.items():
        greedy, logits = generate(loaded, prompt, NEW_TOKENS)
        best = np.sort(logits, axis=-1)[:, -2:]
        if float((best[:, 1] - best[:, 0]).min()) > CLEAR:
            entries.append({"prompt": number, "greedy": greedy})
    return entries


def prompts_of(model: str) -> dict[int, list[int]]:
    """Some of a golden model's, by their numbers."""
    listed = json.loads((GOLDENS / model / "greedy.json").read_text())["prompts"]
    return {number: listed[number] for number in PROMPTS}


def tokens(folder: Path) -> None:
    import torch

    torch.set_num_threads(1)
    told: dict[str, object] = {}
    for model, schemes in CASES.items():
        for scheme in schemes:
            directory = folder / f"{model}-{scheme}"
            told[directory.name] = {"digest": digest(directory), "answers": answers(directory, prompts_of(model))}
            print(directory.name)
    DATA.write_text(json.dumps(told, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    (tokens if "--tokens" in sys.argv else write)(Path(sys.argv[1]))
