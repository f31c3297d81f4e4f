"""Decoders within models for images and sound: which config and which tensors are theirs."""

import json
import shutil
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config
from jaxserve.models.text_part import text_names, text_part
from jaxserve.weights.load import load_params
from sharding import make_mesh
from tests.golden.reading import DATA

GEMMA_4B: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "eos_token_id": [1, 106],
    "image_token_index": 262144,
    "mm_tokens_per_image": 256,
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
}
"""As it was published: what is the family's default is left out."""


def test_gemma_3_as_it_is_published():
    config = decoder_config(text_part(GEMMA_4B))
    assert (config.architecture, config.dtype, config.eos_token_ids) == ("Gemma3ForCausalLM", "bfloat16", (1, 106))
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (8, 4, 256, 262208)
    assert (config.windows[:6], config.tie_embeddings) == ((1024,) * 5 + (None,), True)


def test_what_is_beside_the_inner_config_and_what_decides():
    inner = {**GEMMA_4B["text_config"], "tie_word_embeddings": True, "torch_dtype": "float32", "eos_token_id": None}
    found = text_part({**GEMMA_4B, "tie_word_embeddings": False, "text_config": inner})
    assert (found["tie_word_embeddings"], found["torch_dtype"], found["eos_token_id"]) == (False, "float32", [1, 106])
    assert text_part({"architectures": ["LlamaForCausalLM"], "a": 1}) == {"architectures": ["LlamaForCausalLM"], "a": 1}


def test_names_of_modules_that_are_not_quantized():
    quantization = {"quant_method": "compressed-tensors", "ignore": ["re:vision_tower.*", "language_model.lm_head", 7]}
    found = text_part({**GEMMA_4B, "quantization_config": quantization})
    assert found["quantization_config"]["ignore"] == ["re:vision_tower.*", "lm_head", 7]


def test_another_decoder_within_is_refused_by_name():
    hf = {**GEMMA_4B, "architectures": ["LlavaForConditionalGeneration"], "text_config": {"model_type": "opt"}}
    with pytest.raises(UnsupportedModelError, match="LlavaForConditionalGeneration"):
        decoder_config(text_part(hf))


def test_names_of_a_decoder_are_its_own():
    assert text_names(["model.layers.0.mlp.up_proj.weight", "lm_head.weight"]) is None
    names = ["model.language_model.norm.weight", "lm_head.weight", "model.visual.norm.weight", "model.multi_modal_projector.x"]
    assert text_names(names) == {"model.norm.weight": "model.language_model.norm.weight", "lm_head.weight": "lm_head.weight"}
    assert "ears.weight" in (text_names([*names, "ears.weight"]) or {})


@pytest.mark.parametrize("name", ["gemma3-sees", "mistral-sees"])
def test_the_names_of_both_versions_of_transformers(name, tmp_path):
    """Of version 4 in the golden; and what is of no known part is told."""
    there = tmp_path / name
    shutil.copytree(DATA / name, there)
    config = decoder_config(read_hf_config(there))
    mesh = make_mesh(1)
    old = load_params(there, config, mesh, "float32")
    weights = load_file(there / "model.safetensors")
    assert any(key.startswith("language_model.model.") for key in weights)
    new = {_of_version_5(key): array for key, array in weights.items()}
    save_file(new, there / "model.safetensors", metadata={"format": "pt"})
    again = load_params(there, config, mesh, "float32")
    assert (old["embedding"]["table"] == again["embedding"]["table"]).all()
    assert (old["layers"]["0"]["mlp"]["down"] == again["layers"]["0"]["mlp"]["down"]).all()
    save_file({**new, "ears.weight": np.zeros(2, np.float32)}, there / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"1 unexpected: ears.weight"):
        load_params(there, config, mesh, "float32")
    assert json.loads((there / "config.json").read_text())["vision_config"]


def _of_version_5(key):
    if key.startswith("language_model.model."):
        return key.replace("language_model.model.", "model.language_model.")
    return key.removeprefix("language_model.") if key.startswith("language_model.") else f"model.{key}"
