"""Makes the golden adapters and what PEFT computes with them: python -m tests.golden.make_adapters [BASE/NAME ...]

Needs torch, peft and transformers, and makes the cases that are of the version of transformers that is installed. Each case of
adapter_cases.py becomes adapters/BASE/NAME/: what PEFT saves, and expected.json: prompts, the greedy tokens of its unmerged
forward in float32, and their log-probabilities.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from peft import LoraConfig, get_peft_model

from tests.golden.adapter_cases import ADAPTER_CASES, AdapterCase
from tests.golden.make import CLEAR, DATA, generate, reference_model

ADAPTERS = Path(__file__).parent / "adapters"
LENGTHS = (5, 33, 60)
NEW_TOKENS = 16
INSTALLED = int(transformers.__version__.partition(".")[0])
KEPT = ("adapter_config.json", "adapter_model.safetensors")


def make(case: AdapterCase) -> None:
    """Write one case's directory."""
    directory = ADAPTERS / case.path
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    model = get_peft_model(reference_model(DATA / case.base), LoraConfig(task_type="CAUSAL_LM", **case.lora))
    randomize(model, case.seed)
    model.eval()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        for name in KEPT:
            shutil.copyfile(Path(folder) / name, directory / name)
    config = json.loads((directory / KEPT[0]).read_text())
    config["base_model_name_or_path"] = case.base
    (directory / KEPT[0]).write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    rng = np.random.default_rng(case.seed)
    found = [expected(model, rng, length) for length in LENGTHS]
    (directory / "expected.json").write_text(json.dumps(found, separators=(",", ":")) + "\n")
    with model.disable_adapter():
        plain = [generate(model, one["prompt"], NEW_TOKENS)[0] for one in found]
    differ = sum(one["tokens"] != tokens for one, tokens in zip(found, plain, strict=True))
    print(f"{case.path}: {differ} of {len(found)} outputs differ from those of the base")


def randomize(model: Any, seed: int) -> None:
    """B is zero when PEFT begins: adapters that change much, that a wrong one is seen."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "lora_" in name:
                parameter.copy_(1.2 * torch.randn(parameter.shape, generator=generator) * parameter.shape[1] ** -0.5)


def expected(model: Any, rng: np.random.Generator, length: int) -> dict[str, Any]:
    """A random prompt whose continuation has no near-tie, its greedy tokens and their log-probabilities."""
    for _ in range(200):
        prompt = rng.integers(model.config.vocab_size, size=length).tolist()
        tokens, logits = generate(model, prompt, NEW_TOKENS)
        best = np.sort(logits, axis=-1)[:, -2:]
        if (best[:, 1] - best[:, 0]).min() > CLEAR:
            logprobs = torch.log_softmax(torch.tensor(logits, dtype=torch.float64), -1)
            chosen = logprobs[torch.arange(len(tokens)), torch.tensor(tokens)]
            return {"prompt": prompt, "tokens": tokens, "logprobs": [round(value, 6) for value in chosen.tolist()]}
    raise RuntimeError(f"no prompt of {length} tokens without a near-tie: choose another seed")


if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen = sys.argv[1:]
    for each in ADAPTER_CASES:
        if each.transformers == INSTALLED and (not chosen or each.path in chosen):
            make(each)
