"""Makes modules for multi-token prediction beside golden checkpoints: python -m tests.golden.make_modules [NAME ...]

Needs the `parity` extra. transformers passes over such modules, so one is made here of its parts: a model of one layer with
attention, its final norm, and two more norms. Each case becomes modules/NAME/: module.safetensors, and expected.npz with hidden
states, the tokens after them, and what the module makes of both.
"""

from __future__ import annotations

import sys
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.golden.make import DATA, randomize, reference_model

MODULES = Path(__file__).parent / "modules"
CASES = {"qwen3-5-dense": 201, "qwen3-5-experts": 202, "qwen3-next-experts": 203}
TOKENS = 24


def make(name: str, seed: int) -> None:
    """Write one case's directory."""
    target = reference_model(DATA / name)
    config = deepcopy(target.config)
    config.num_hidden_layers, config.layer_types = 1, ["full_attention"]
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    embed, norm = config.hidden_size, type(model.model.norm)
    around = torch.nn.ModuleDict(
        {
            "fc": torch.nn.Linear(2 * embed, embed, bias=False),
            "pre_fc_norm_embedding": norm(embed, eps=config.rms_norm_eps),
            "pre_fc_norm_hidden": norm(embed, eps=config.rms_norm_eps),
        }
    )
    randomize(model, seed)
    randomize(around, seed + 1000)
    directory = MODULES / name
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors(model, around), directory / "module.safetensors")
    np.savez_compressed(directory / "expected.npz", **computed(target, model, around, seed))


def tensors(model: Any, around: torch.nn.ModuleDict) -> dict[str, torch.Tensor]:
    """Under the names that published checkpoints have."""
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        saved = load_file(Path(scratch) / "model.safetensors")
    own = {name: tensor for name, tensor in saved.items() if name.startswith(("model.layers.", "model.norm."))}
    named = {f"mtp.{name.removeprefix('model.')}": tensor for name, tensor in own.items()}
    return named | {f"mtp.{name}": tensor.contiguous() for name, tensor in around.state_dict().items()}


def computed(target: Any, model: Any, around: torch.nn.ModuleDict, seed: int) -> dict[str, Any]:
    """What the module makes of random hidden states and tokens."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(1, TOKENS, model.config.hidden_size, generator=generator)
    follows = torch.randint(model.config.vocab_size, (1, TOKENS), generator=generator)
    with torch.no_grad():
        embedded = target.model.embed_tokens(follows)
        both = torch.cat([around["pre_fc_norm_embedding"](embedded), around["pre_fc_norm_hidden"](hidden)], dim=-1)
        after = model.model(inputs_embeds=around["fc"](both), use_cache=False).last_hidden_state
        logits = target.lm_head(after)
    arrays = {"hidden": hidden, "follows": follows, "after": after, "logits": logits}
    return {name: array[0].numpy() for name, array in arrays.items()}


if __name__ == "__main__":
    for each in sys.argv[1:] or CASES:
        make(each, CASES[each])
