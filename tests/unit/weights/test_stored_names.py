"""Tensors that a checkpoint stores under other names than its family's, that decide against its flag, or that say nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxserve.errors import CheckpointError
from jaxserve.models.config import DecoderConfig
from jaxserve.models.registry import decoder_config, weight_rules
from jaxserve.weights.check import check_tensors, without_zero_biases
from jaxserve.weights.checkpoint import whole
from jaxserve.weights.formats import open_checkpoint
from jaxserve.weights.stacked_experts import with_own_experts
from jaxserve.weights.stored_head import with_stored_head
from tests.support.minimal_config import hf

HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"
EXPERTS = {"num_experts_per_tok": 2}


def own_tensors(config: DecoderConfig) -> dict[str, np.ndarray[Any, Any]]:
    """All that its rules read, under their names."""
    rng = np.random.default_rng(0)
    sources = {source.name: source.stored_shape for rule in weight_rules(config) for source in rule.sources}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in sources.items()}


def stored(directory: Path, tensors: Mapping[str, np.ndarray[Any, Any]]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    save_file({name: np.ascontiguousarray(one) for name, one in tensors.items()}, directory / "model.safetensors")
    return directory


def read_all(directory: Path, config: DecoderConfig) -> dict[str, np.ndarray[Any, Any]]:
    """What the rules read; the checkpoint has all of it, and nothing else."""
    rules = weight_rules(config)
    with open_checkpoint(directory, "auto") as opened:
        checkpoint = with_own_experts(opened, rules)
        check_tensors(config, rules, without_zero_biases(checkpoint, rules, checkpoint.shapes), checkpoint.dtypes)
        names = [source.name for rule in rules for source in rule.sources]
        return {name: np.array(checkpoint.read(name, whole(checkpoint.shapes[name]))) for name in names}


def same(found: Mapping[str, np.ndarray[Any, Any]], meant: Mapping[str, np.ndarray[Any, Any]]) -> None:
    for name, tensor in meant.items():
        np.testing.assert_array_equal(found[name], tensor, err_msg=name)


@pytest.mark.format("weights", "an `lm_head.weight` of its own beside `tie_word_embeddings`: it makes the logits", "read")
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen2ForCausalLM", "Gemma2ForCausalLM"])
@pytest.mark.parametrize("prefix", ["", "language_model."])
def test_a_head_of_its_own_makes_the_logits_whatever_the_flag_says(
    tmp_path: Path, architecture: str, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = decoder_config(hf(architecture, tie_word_embeddings=True))
    tensors = own_tensors(config)
    heads = {"none": {}, "equal": {HEAD: tensors[TABLE]}, "other": {HEAD: tensors[TABLE] + 1}, "wider": {HEAD: np.ones((7, 32))}}
    for kind, head in heads.items():
        directory = stored(tmp_path / kind, {prefix + name: one for name, one in {**tensors, **head}.items()})
        with caplog.at_level(logging.WARNING):
            found = with_stored_head(config, directory)
        assert found.tie_embeddings == (kind in ("none", "equal")), kind
    assert caplog.text.count("is not model.embed_tokens.weight: it makes the logits") == 2
    assert with_stored_head(config, tmp_path / "nowhere") is config
    untied = decoder_config(hf(architecture, tie_word_embeddings=False))
    assert with_stored_head(untied, tmp_path / "other") is untied


def resaved(tensors: Mapping[str, np.ndarray[Any, Any]], block: str, names: tuple[str, str, str]) -> dict[str, Any]:
    """As transformers 5 saves experts: one tensor for gates and what they gate, one for what is down, below `mlp`."""
    gate, up, down = names
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        if f".{block}.experts." not in name:
            found[name.replace(f".{block}.", ".mlp.")] = tensor
    for layer in range(3):
        experts = f"model.layers.{layer}.{block}.experts"
        count = sum(name.startswith(experts) and name.endswith(f".{down}.weight") for name in tensors)
        each = [[tensors[f"{experts}.{expert}.{part}.weight"] for part in names] for expert in range(count)]
        target = f"model.layers.{layer}.mlp.experts"
        found[f"{target}.gate_up_proj"] = np.stack([np.concatenate([one[0], one[1]]) for one in each])
        found[f"{target}.down_proj"] = np.stack([one[2] for one in each])
    assert gate != up
    return found


@pytest.mark.format("weights", "experts that transformers 5 saved again: `mlp.experts.gate_up_proj`, `mlp.gate`", "read")
@pytest.mark.parametrize(
    ("architecture", "changes", "block", "names"),
    [
        ("MixtralForCausalLM", {"num_local_experts": 4}, "block_sparse_moe", ("w1", "w3", "w2")),
        ("MiniMaxM2ForCausalLM", {"num_local_experts": 4, "head_dim": 8}, "block_sparse_moe", ("w1", "w3", "w2")),
        ("Qwen3MoeForCausalLM", {"num_experts": 4, "moe_intermediate_size": 16}, "mlp", ("gate_proj", "up_proj", "down_proj")),
    ],
)
def test_experts_that_transformers_5_saved_again(
    tmp_path: Path, architecture: str, changes: dict[str, Any], block: str, names: tuple[str, str, str]
) -> None:
    config = decoder_config(hf(architecture, **EXPERTS, **changes))
    tensors = own_tensors(config)
    again = resaved(tensors, block, names)
    assert again.keys() != tensors.keys()
    same(read_all(stored(tmp_path, again), config), tensors)


@pytest.mark.format("weights", "tensors without the prefix `model.` beside a head", "read")
def test_a_model_without_the_prefix_beside_its_head(tmp_path: Path) -> None:
    config = decoder_config(hf("LlamaForCausalLM"))
    tensors = own_tensors(config)
    same(read_all(stored(tmp_path, {name.removeprefix("model."): one for name, one in tensors.items()}), config), tensors)


@pytest.mark.format("weights", "names of older conversions: `bert.`, `LayerNorm.gamma`, `LayerNorm.beta`", "read")
@pytest.mark.parametrize("prefix", ["", "bert."])
def test_names_of_old_conversions_of_bert(tmp_path: Path, prefix: str) -> None:
    config = decoder_config({**hf("BertModel", model_type="bert", num_key_value_heads="absent"), "type_vocab_size": 2})
    tensors = own_tensors(config)
    old = {
        prefix + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): one
        for name, one in tensors.items()
    }
    assert any("gamma" in name for name in old)
    same(read_all(stored(tmp_path, old), config), tensors)


@pytest.mark.format("weights", "other biases of layers that have none", "refused")
@pytest.mark.format("weights", "biases that are zeros, of layers that have none", "read")
def test_biases_of_zeros_say_nothing_and_others_do(tmp_path: Path) -> None:
    config = decoder_config(hf("LlamaForCausalLM"))
    tensors, name = own_tensors(config), "model.layers.0.mlp.up_proj.bias"
    same(read_all(stored(tmp_path / "zero", {**tensors, name: np.zeros(48, np.float32)}), config), tensors)
    with pytest.raises(CheckpointError, match=r"1 unexpected: model\.layers\.0\.mlp\.up_proj\.bias \[48\]"):
        read_all(stored(tmp_path / "one", {**tensors, name: np.eye(48, dtype=np.float32)[0]}), config)
    with pytest.raises(CheckpointError, match=r"1 unexpected: model\.layers\.0\.other\.bias"):
        read_all(stored(tmp_path / "other", {**tensors, "model.layers.0.other.bias": np.zeros(2, np.float32)}), config)
