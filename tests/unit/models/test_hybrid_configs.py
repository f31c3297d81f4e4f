"""Layers that differ in kind: states, attention within chunks, MLPs and experts behind some, and what makes no decoder."""

from typing import Any

import pytest

from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.models.positions import QueryScale
from jaxserve.models.registry import decoder_config, weight_rules
from tests.support.minimal_config import hf, present

MSTAR: dict[str, Any] = {"hybrid_override_pattern": "MM*"}


def test_recurrent_layers():
    """Which layers have a state, in the words of either version of transformers, and what makes no decoder."""
    by_default = decoder_config(hf("Qwen3NextForCausalLM", num_hidden_layers=8)).recurrent
    assert by_default is not None
    assert by_default.layers == (True, True, True, False) * 2
    assert by_default.state == (32, 128, 128)
    assert decoder_config(hf("Qwen3_5ForCausalLM", layer_types=["full_attention"] * 3)).recurrent is None
    named = {"mamba_n_heads": 8, "layer_types": ["mamba", "attention", "mamba"]}
    granite = decoder_config(hf("GraniteMoeHybridForCausalLM", **named))
    assert granite.recurrent is not None
    assert granite.recurrent.layers == (True, False, True)
    assert granite.cache_windows == (None,)
    assert granite.cache_numbers == (-1, 0, -1)
    assert granite.only(0).cache_windows == ()
    assert granite.only(1).recurrent is None


def test_nemotron_h_has_an_mlp_behind_some_of_its_layers():
    """As its letters say, or its list, in the words of either version of transformers; its blocks are numbered on their own."""
    pattern = decoder_config(hf("NemotronHForCausalLM", hybrid_override_pattern="M-MM*-", num_hidden_layers=6))
    assert (pattern.num_layers, pattern.ffn_sizes, pattern.gated) == (4, (48, 0, 0, 48), False)
    assert pattern.recurrent is not None
    assert pattern.recurrent.layers == (True, True, True, False)
    assert pattern.norm_eps == 1e-5
    assert len(pattern.layer_norms) == 6
    for words in (("mamba", "attention"), ("linear_attention", "full_attention")):
        listed = [words[0], "mlp", words[0], words[0], words[1], "mlp"]
        assert decoder_config(hf("NemotronHForCausalLM", layers_block_type=listed, num_hidden_layers="absent")) == pattern
    names = {source.name for rule in weight_rules(pattern) for source in rule.sources}
    assert {f"backbone.layers.{block}.norm.weight" for block in range(6)} <= names
    assert {name for name in names if "up_proj" in name} == {f"backbone.layers.{block}.mixer.up_proj.weight" for block in (1, 5)}
    assert {name for name in names if "A_log" in name} == {f"backbone.layers.{block}.mixer.A_log" for block in (0, 2, 3)}
    assert {"backbone.layers.4.mixer.q_proj.weight", "backbone.embeddings.weight", "backbone.norm_f.weight"} <= names
    assert decoder_config(hf("NemotronHForCausalLM", hybrid_override_pattern="*-*-*-", num_hidden_layers=6)).ffn_sizes == ()


def test_nemotron_3_has_experts_without_gates():
    mixed = decoder_config(hf("NemotronHForCausalLM", hybrid_override_pattern="MEM-*E", num_hidden_layers=6, moe_latent_size=8))
    assert (mixed.ffn_sizes, mixed.gated) == ((0, 48, 0), False)
    assert [mixed.has_mlp(layer) for layer in range(3)] == [True] * 3
    assert mixed.experts is not None
    assert (mixed.experts.layers, mixed.experts.latent_size) == ((True, False, True), 8)
    assert (mixed.experts.routing.groups, mixed.experts.routing.scale, mixed.experts.routing.correction) == (1, 1.0, True)
    shapes = {source.name: source.shape for rule in weight_rules(mixed) for source in rule.sources}
    assert shapes["backbone.layers.5.mixer.experts.7.up_proj.weight"] == (7688, 8)
    assert shapes["backbone.layers.1.mixer.shared_experts.up_proj.weight"] == (7688, 32)
    assert shapes["backbone.layers.1.mixer.fc2_latent_proj.weight"] == (32, 8)
    assert not any("gate_proj" in name for name in shapes)


def test_llama_4_attends_within_chunks_where_it_rotates():
    scout = decoder_config(hf("Llama4ForCausalLM", num_hidden_layers=5, no_rope_layers=[], attn_temperature_tuning=4))
    assert (scout.windows, scout.chunked) == ((8192, 8192, 8192, None, 8192), True)
    assert [rope is None for rope in scout.ropes] == [False, False, False, True, False]
    assert present(scout.ropes[0]).interleaved
    assert (scout.seen_by(0), scout.seen_by(3)) == ({"chunk": 8192}, {"chunk": None})
    assert scout.query_scale == QueryScale(beta=0.1, period=8192, first=1, unrotated=True)
    assert (scout.ffn_size, scout.qk_norm) == (16384, "rotated")
    assert scout.experts is not None
    assert (scout.experts.count, scout.experts.active, scout.experts.ffn_size, scout.experts.shared_ffn_size) == (16, 1, 48, 48)
    assert all(scout.experts.layers)
    maverick = decoder_config(hf("Llama4ForCausalLM", interleave_moe_layer_step=2, use_qk_norm=False, num_local_experts=128))
    assert maverick.experts is not None
    assert (maverick.experts.layers, maverick.qk_norm) == ((False, True, False), None)
    names = {source.name for rule in weight_rules(maverick) for source in rule.sources}
    assert {"model.layers.0.feed_forward.gate_proj.weight", "model.layers.1.feed_forward.experts.gate_up_proj"} <= names


@pytest.mark.parametrize(
    ("architecture", "changes", "error", "message"),
    [
        ("Llama4ForCausalLM", {"layer_types": ["full_attention"] * 2}, CheckpointError, "2 entries for 3 layers"),
        ("Llama4ForCausalLM", {"layer_types": ["sliding_attention"] * 3}, UnsupportedModelError, "supported are chunked_att"),
        ("Llama4ForCausalLM", {"moe_layers": [3]}, CheckpointError, r"moe_layers must be numbers of 3 layers, got \[3\]"),
        ("Llama4ForCausalLM", {"no_rope_layers": [1, 0]}, CheckpointError, "a 0 or 1 for each of 3 layers"),
        (
            "Llama4ForCausalLM",
            {"layer_types": ["chunked_attention"] * 3, "attention_chunk_size": None},
            CheckpointError,
            "attention_chunk_size is null",
        ),
        ("Qwen3NextForCausalLM", {"layer_types": ["full_attention"] * 2}, CheckpointError, "2 entries for 3 layers"),
        ("Qwen3NextForCausalLM", {"layer_types": ["linear_attention"] * 3}, CheckpointError, "no full_attention"),
        ("Qwen3NextForCausalLM", {"layer_types": ["rwkv"] * 3}, UnsupportedModelError, "supported are linear_attention, full"),
        ("Qwen3_5ForCausalLM", {"full_attention_interval": 3, "linear_num_value_heads": 24}, CheckpointError, "24 and 16"),
        ("Qwen3_5ForCausalLM", {"full_attention_interval": 3, "linear_conv_kernel_dim": 1}, CheckpointError, "2 or more"),
        ("Lfm2ForCausalLM", {"layer_types": ["conv"] * 3}, CheckpointError, "no full_attention"),
        ("Lfm2ForCausalLM", {"layer_types": ["conv"]}, CheckpointError, "1 entries for 3 layers"),
        ("Lfm2ForCausalLM", {"conv_bias": True}, UnsupportedModelError, "add no bias"),
        ("Lfm2ForCausalLM", {"conv_L_cache": 1}, CheckpointError, "2 or more, got 1"),
        ("GraniteMoeHybridForCausalLM", {"mamba_n_heads": 8}, CheckpointError, "no attention"),
        ("GraniteMoeHybridForCausalLM", {"layer_types": ["mlp"] * 3}, UnsupportedModelError, "supported are mamba"),
        ("GraniteMoeHybridForCausalLM", {"mamba_n_heads": 7}, CheckpointError, "mamba_n_heads=7 must be a multiple"),
        ("GraniteMoeHybridForCausalLM", {"mamba_proj_bias": True}, UnsupportedModelError, "add no bias"),
        ("GraniteMoeHybridForCausalLM", {"position_embedding_type": "alibi"}, UnsupportedModelError, "rope and nope"),
        ("GraniteMoeHybridForCausalLM", {"time_step_limit": [0.1]}, CheckpointError, "two numbers"),
        ("NemotronHForCausalLM", {}, CheckpointError, "lacks layers_block_type or hybrid_override_pattern"),
        ("NemotronHForCausalLM", {"hybrid_override_pattern": ""}, CheckpointError, "hybrid_override_pattern is empty"),
        ("NemotronHForCausalLM", {"hybrid_override_pattern": "M*"}, CheckpointError, "2 entries for 3 layers"),
        ("NemotronHForCausalLM", {"hybrid_override_pattern": "M-M"}, CheckpointError, "no attention"),
        ("NemotronHForCausalLM", {"hybrid_override_pattern": "MX*"}, UnsupportedModelError, "supported are state spaces"),
        ("NemotronHForCausalLM", {"hybrid_override_pattern": "EM*"}, UnsupportedModelError, "behind a state space or attention"),
        ("NemotronHForCausalLM", {"hybrid_override_pattern": "ME*", "mlp_bias": True}, UnsupportedModelError, "mlp_bias"),
        ("NemotronHForCausalLM", {"hybrid_override_pattern": "ME*", "n_shared_experts": 2}, UnsupportedModelError, "n_shared"),
        ("NemotronHForCausalLM", {"hybrid_override_pattern": "ME*", "n_group": 3}, CheckpointError, "n_group=3 does not divide"),
        ("NemotronHForCausalLM", {"hybrid_override_pattern": "-M*"}, UnsupportedModelError, "behind a state space or attention"),
        (
            "NemotronHForCausalLM",
            {"layers_block_type": ["attention", "mlp", "mlp"]},
            UnsupportedModelError,
            "an MLP or experts come behind",
        ),
        ("NemotronHForCausalLM", {**MSTAR, "use_bias": True}, UnsupportedModelError, "use_bias"),
        ("NemotronHForCausalLM", {**MSTAR, "mlp_hidden_act": "silu"}, UnsupportedModelError, "mlp_hidden_act"),
        ("NemotronHForCausalLM", {**MSTAR, "mamba_hidden_act": "gelu"}, UnsupportedModelError, "mamba_hidden_act"),
        ("NemotronHForCausalLM", {**MSTAR, "sliding_window": 64}, UnsupportedModelError, "sliding_window"),
        ("NemotronHForCausalLM", {**MSTAR, "n_groups": 3}, CheckpointError, "mamba_num_heads=128 must be a multiple"),
    ],
)
def test_layers_that_are_refused(architecture, changes, error, message):
    layers = {"layer_types": ["mamba", "mamba", "attention"], "mamba_n_heads": 8} if architecture.startswith("Granite") else {}
    if changes == {"mamba_n_heads": 8}:
        layers = {}
    with pytest.raises(error, match=message):
        decoder_config(hf(architecture, **{**layers, **changes}))
