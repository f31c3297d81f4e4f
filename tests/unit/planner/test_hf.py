"""Reading config.json files as the engine does; what it counts is counted to the byte in test_bytes.py."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxserve.errors import CheckpointError, ConfigError, UnsupportedModelError
from jaxserve.models.registry import decoder_config
from jaxserve.planner import catalogue
from jaxserve.planner.hf import shape_from_hf

SMALL: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
}


def hf(kind: str, **fields: Any) -> dict[str, Any]:
    return SMALL | {"model_type": kind} | fields


@pytest.mark.parametrize(
    ("kind", "architecture", "fields"),
    [
        ("llama", "LlamaForCausalLM", {}),
        ("llama", "LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("mistral", "MistralForCausalLM", {"sliding_window": 32, "head_dim": 16}),
        ("qwen2", "Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 3}),
        ("qwen3", "Qwen3ForCausalLM", {"head_dim": 16}),
        ("gemma3_text", "Gemma3ForCausalLM", {"head_dim": 16, "sliding_window": 32}),
        ("olmo2", "Olmo2ForCausalLM", {}),
    ],
)
def test_counts_as_the_engine_does(kind: str, architecture: str, fields: dict[str, Any]) -> None:
    config = hf(kind, **fields)
    engine = decoder_config(config | {"architectures": [architecture], "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16"})
    shape = shape_from_hf(config, "small")
    assert shape.num_parameters == engine.num_parameters
    assert shape.windows == engine.windows
    assert (shape.num_kv_heads, shape.head_dim) == (engine.num_kv_heads, engine.head_dim)


GEMMA4: dict[str, dict[str, Any]] = {
    "E2B": {
        "hidden_size": 1536,
        "num_hidden_layers": 35,
        "num_key_value_heads": 1,
        "intermediate_size": 6144,
        "num_kv_shared_layers": 20,
        "use_double_wide_mlp": True,
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
    },
    "26B-A4B": {
        "hidden_size": 2816,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "attention_k_eq_v": True,
        "intermediate_size": 2112,
        "enable_moe_block": True,
        "num_experts": 128,
        "top_k_experts": 8,
        "moe_intermediate_size": 704,
        "hidden_size_per_layer_input": 0,
    },
    "31B": {
        "hidden_size": 5376,
        "num_hidden_layers": 60,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "num_global_key_value_heads": 4,
        "attention_k_eq_v": True,
        "intermediate_size": 21504,
        "hidden_size_per_layer_input": 0,
    },
}


@pytest.mark.parametrize(("name", "billions", "active"), [("E2B", 4.63, 2.3), ("26B-A4B", 25.2, 3.8), ("31B", 30.7, 30.7)])
def test_gemma4_has_as_many_parameters_as_its_card_says(name: str, billions: float, active: float) -> None:
    """E2B's card counts its encoders of images and sound besides."""
    shape = shape_from_hf({"model_type": "gemma4_text", **GEMMA4[name]}, name)
    assert shape.num_parameters / 1e9 == pytest.approx(billions, abs=0.05)
    assert shape.num_active / 1e9 == pytest.approx(active, abs=0.05)


def test_a_layer_reads_its_own_heads_and_holds_the_largest() -> None:
    shape = shape_from_hf({"model_type": "gemma4_text", **GEMMA4["31B"]}, "31B")
    local, whole = shape.layer_heads[0], shape.layer_heads[-1]
    assert (shape.read_values(local, 1), shape.read_values(whole, 1)) == (2 * 16 * 256, 2 * 4 * 512)
    assert shape.kv_values() == shape.kv_values(1) == 2 * 16 * 256
    assert shape.attention_flops(whole, decode=True) == 2 * shape.attention_flops(local, decode=True)
    assert shape.seen(10000, lambda heads: heads.head_dim) == 50 * 512 * 256 + 10 * 10000 * 512


def test_gpt_oss_alternates_windows_unless_told() -> None:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 128}
    assert shape_from_hf(hf("gpt_oss", **experts), "x").windows == (128, None, 128, None)
    types = ["full_attention", "full_attention", "sliding_attention", "full_attention"]
    assert shape_from_hf(hf("gpt_oss", **experts, layer_types=types), "x").windows == (None, None, 128, None)


def test_deepseek_has_dense_layers_first_and_shared_experts() -> None:
    latent = {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "num_key_value_heads": 8}
    moe = {"n_routed_experts": 4, "n_shared_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    shape = shape_from_hf(hf("deepseek_v2", **latent, **moe, q_lora_rank=None, first_k_dense_replace=1), "x")
    assert shape.experts is not None
    assert shape.latent is not None
    assert (sum(shape.experts.layers), shape.dense_layers, shape.experts.shared_ffn_size) == (3, 1, 64)
    assert shape.latent.query_rank is None


def test_qwen3_moe_may_have_dense_layers() -> None:
    moe = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mlp_only_layers": [0]}
    assert shape_from_hf(hf("qwen3_moe", **moe), "x").dense_layers == 1
    assert shape_from_hf(hf("qwen3_moe", **moe | {"decoder_sparse_step": 2}), "x").dense_layers == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_key_value_heads": 3}, "num_attention_heads=8 is no multiple of 3"),
        ({"hidden_size": 60}, "head_dim must be even"),
        ({"vocab_size": -1}, "vocab_size must be a positive integer"),
        ({"num_hidden_layers": None}, "lacks num_hidden_layers"),
    ],
)
@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_impossible_fields_are_named(kind: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        shape_from_hf(hf(kind, **fields), "x")


def test_more_active_experts_than_there_are() -> None:
    with pytest.raises(CheckpointError, match="num_experts_per_tok=5 is more than the 4 experts"):
        shape_from_hf(hf("mixtral", num_local_experts=4, num_experts_per_tok=5), "x")


def test_an_unknown_model_type_lists_the_known() -> None:
    with pytest.raises(UnsupportedModelError, match="'mamba' is not known to the planner; known are llama, llama4_text, mistral"):
        shape_from_hf(hf("mamba"), "x")


def test_a_directory_and_a_file_are_read_alike(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(hf("llama")))
    assert catalogue.model(str(tmp_path)) == catalogue.model(str(path))
    assert catalogue.model(str(path)).name == tmp_path.name


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        catalogue.model(str(tmp_path))


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(ConfigError, match=r"unknown model 'gpt-5'.*llama-2-7b.*gpt-oss-120b"):
        catalogue.model("gpt-5")
    with pytest.raises(ConfigError, match="unknown hardware 'tpu'; known are a100-40, a100-80, h100, h200, b200"):
        catalogue.hardware("tpu")
