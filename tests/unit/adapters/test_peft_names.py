"""Adapters that PEFT saved: the names that modules have in a model for images, and initialisations that change the base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxserve.adapters.peft import AdapterFormat, HostAdapter, read_peft
from jaxserve.errors import CheckpointError
from jaxserve.models.registry import decoder_config
from tests.support.minimal_config import hf

FORM = AdapterFormat(model=decoder_config(hf("LlamaForCausalLM")), shards=1, rank=4, dtype="float32")
BEGINS = ("model.", "model.language_model.", "language_model.model.")
MODULES = {"layers.0.self_attn.q_proj": (32, 32), "layers.2.mlp.down_proj": (32, 48)}  # outputs and inputs


def saved(directory: Path, begin: str, config: dict[str, Any], more: dict[str, Any] | None = None) -> Path:
    rng, tensors = np.random.default_rng(0), dict[str, Any]()
    ranks = config.get("rank_pattern", {})
    for module, (outputs, inputs) in MODULES.items():
        name, rank = begin + module, ranks.get(begin + module, 2)
        tensors[f"base_model.model.{name}.lora_A.weight"] = rng.standard_normal((rank, inputs)).astype(np.float32)
        tensors[f"base_model.model.{name}.lora_B.weight"] = rng.standard_normal((outputs, rank)).astype(np.float32)
    directory.mkdir()
    save_file(tensors | (more or {}), directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4, **config}))
    return directory


def read(directory: Path) -> HostAdapter:
    return read_peft(directory, FORM, 4)


@pytest.mark.format(
    "adapters",
    "names of multimodal wrappers: `model.language_model.layers`, `language_model.model.layers`",
    "read",
)
def test_modules_of_a_decoder_within_another_model_are_found(tmp_path: Path) -> None:
    """Those of the part that sees have no effect on text."""
    vision = {f"base_model.model.vision_tower.layers.0.q_proj.lora_{part}.weight": np.ones((2, 2), np.float32) for part in "AB"}
    each = [read(saved(tmp_path / str(place), begin, {}, vision if place else None)) for place, begin in enumerate(BEGINS)]
    assert {one.digest for one in each} == {each[0].digest}
    assert np.abs(each[0].numbers).sum() > 0


@pytest.mark.format("adapters", "`rank_pattern`, `alpha_pattern`, in the adapter's own names", "read")
@pytest.mark.parametrize("begin", BEGINS)
def test_patterns_are_matched_with_the_adapters_own_names(tmp_path: Path, begin: str) -> None:
    module = f"{begin}layers.0.self_attn.q_proj"
    patterns = {"rank_pattern": {module: 3}, "alpha_pattern": {module: 9}}
    found = read(saved(tmp_path / "patterns", begin, patterns))
    plain = read(saved(tmp_path / "plain", "model.", {"rank_pattern": {"model.layers.0.self_attn.q_proj": 3}, "lora_alpha": 4}))
    assert found.rank == 3
    shares = found.numbers[plain.numbers != 0] / plain.numbers[plain.numbers != 0]
    assert {round(float(one), 4) for one in np.unique(shares)} == {1.0, round(9 / 4, 4)}


@pytest.mark.format("adapters", "one module under two names", "refused")
def test_a_module_under_two_names_is_refused(tmp_path: Path) -> None:
    other = {
        f"base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_{part}.weight": np.ones(shape, np.float32)
        for part, shape in (("A", (2, 32)), ("B", (32, 2)))
    }
    with pytest.raises(CheckpointError, match="language_model"):
        read(saved(tmp_path / "twice", "language_model.model.", {}, other))


@pytest.mark.format("adapters", "`init_lora_weights` of PiSSA, OLoRA, CorDA and LoftQ, saved without conversion", "refused")
@pytest.mark.parametrize("init", ["pissa", "pissa_niter_16", "olora", "corda", "loftq"])
def test_initialisations_that_change_the_base_are_refused_by_name(tmp_path: Path, init: str) -> None:
    with pytest.raises(CheckpointError, match=f"init_lora_weights='{init}' is not supported: it changes the base's weights"):
        read(saved(tmp_path / init, "model.", {"init_lora_weights": init}))


@pytest.mark.format("adapters", "other `init_lora_weights`", "read")
@pytest.mark.parametrize("init", [True, False, None, "gaussian", "eva", "orthogonal"])
def test_others_are_read(tmp_path: Path, init: Any) -> None:
    assert read(saved(tmp_path / "adapter", "model.", {"init_lora_weights": init})).rank == 2
