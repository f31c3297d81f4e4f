import math
from typing import Any

import pytest

from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.models.config import Heads
from jaxserve.models.positions import QueryScale
from jaxserve.models.recurrent import ShortConv
from jaxserve.models.registry import FAMILIES, MODEL_TYPES, decoder_config, weight_rules
from tests.support.minimal_config import hf, present

RECURRENT: dict[str, Any] = {"layer_types": ["linear_attention", "linear_attention", "full_attention"], "mamba_n_heads": 8}
LATENT: dict[str, Any] = {"num_key_value_heads": 4, "num_experts_per_tok": 2}  # what DeepSeek's families need beside
GEMMA4: dict[str, Any] = {"hidden_size_per_layer_input": 0}  # or their table would have rows for 262,144 tokens
OWN: dict[str, dict[str, Any]] = {
    "Deepseek": LATENT,
    "Glm4MoeLite": LATENT,
    "GlmMoeDsa": LATENT,
    "Gemma4": GEMMA4,
    "Qwen3Next": RECURRENT,
    "Qwen3_5": RECURRENT,
    "GraniteMoe": RECURRENT,
    "Nemotron": {"hybrid_override_pattern": "M*M"},
}


def test_every_family_reads_a_minimal_config():
    for architecture in FAMILIES:
        latent = architecture.startswith(("Deepseek", "Glm4MoeLite", "GlmMoeDsa"))
        config = decoder_config(hf(architecture, **next((OWN[name] for name in OWN if architecture.startswith(name)), {})))
        assert (config.num_heads, config.num_kv_heads, config.num_layers) == (4, 1 if latent else 2, 3)
        assert config.eos_token_ids == (2, 3)
        assert config.dtype == ("bfloat16" if architecture == "GptOssForCausalLM" else "float32")


def test_what_each_family_decides():
    llama, mistral, qwen2, qwen3 = (decoder_config(hf(f"{name}ForCausalLM")) for name in ("Llama", "Mistral", "Qwen2", "Qwen3"))
    assert (llama.qkv_bias, mistral.qkv_bias, qwen2.qkv_bias, qwen3.qkv_bias) == (False, False, True, False)
    assert (llama.head_dim, qwen3.head_dim) == (8, 128)
    assert [c.qk_norm for c in (llama, mistral, qwen2, qwen3)] == [None, None, None, "head"]
    assert llama.windows == qwen2.windows == (None,) * 3
    assert mistral.windows == (4096,) * 3
    assert decoder_config(hf("MistralForCausalLM", sliding_window=None)).windows == (None,) * 3


GEMMA4_LAYERS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]


def gemma4(**changes):
    return hf("Gemma4ForCausalLM", **{"num_hidden_layers": 4, "layer_types": GEMMA4_LAYERS, **GEMMA4, **changes})


def test_gemma4_has_heads_of_its_own_where_it_sees_everything():
    plain = decoder_config(gemma4())
    local, whole = Heads(kv_heads=2, head_dim=256), Heads(kv_heads=2, head_dim=512)
    assert plain.heads == (local, whole, local, whole)
    assert plain.windows == (512, None, 512, None)
    assert [present(rope).rotated_dims for rope in plain.ropes] == [None, 128, None, 128]
    fewer = decoder_config(gemma4(attention_k_eq_v=True, num_global_key_value_heads=1, global_head_dim=64))
    assert fewer.heads[1] == Heads(kv_heads=1, head_dim=64, values_are_keys=True)
    assert decoder_config(gemma4(num_global_key_value_heads=1)).heads == plain.heads, "only where values are keys"
    written = {str(layer): {"head_dim": 64, "num_key_value_heads": 1} for layer in (1, 3)}
    assert decoder_config(gemma4(attention_k_eq_v=True, per_layer_config=written)) == fewer
    assert decoder_config(gemma4(per_layer_config={})).heads == ()


def test_gemma4_shares_keys_of_the_last_layer_of_a_type():
    shared = decoder_config(gemma4(num_kv_shared_layers=2, use_double_wide_mlp=True))
    assert shared.kv_sources == (0, 1, 0, 1)
    assert shared.ffn_sizes == (48, 48, 96, 96)
    assert shared.cache_windows == (512, None)
    assert decoder_config(gemma4()).kv_sources == decoder_config(gemma4(use_double_wide_mlp=True)).ffn_sizes == ()
    four = gemma4(layer_types=["full_attention", "sliding_attention"] * 2)
    assert decoder_config(four).windows == (None, 512, None, None), "the last one sees everything"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_kv_shared_layers": 3}, "num_kv_shared_layers=3 of 4 layers leaves a type of layers without"),
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers=5 of 4 layers leaves a type of layers without"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention='all' is not supported"),
        ({"hidden_activation": "silu"}, "hidden_activation='silu' is not supported"),
        ({"hidden_size_per_layer_input": 8}, "vocab_size_per_layer_input=262144 is not supported; it must be vocab_size, 100"),
        ({"per_layer_config": {"1": {"head_dim": 64}}}, "layers of one type have the same heads"),
        ({"per_layer_config": {"1": {"sliding_window": 64}}}, "of single layers, not sliding_window"),
        ({"per_layer_config": {"4": {"head_dim": 64}}}, "of single layers, not 4"),
        ({"attention_k_eq_v": True, "num_global_key_value_heads": 3}, "3 kv heads of 512 .* num_attention_heads=4 must be a mul"),
        ({"enable_moe_block": True}, "lacks num_experts"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_parameters=.* a table for sliding_attention and one for"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default", "partial_rotary_factor": 0.5}}},
            "partial_rotary_factor=0.5 is not supported",
        ),
    ],
)
def test_what_gemma4_cannot_be(changes, words):
    with pytest.raises((UnsupportedModelError, CheckpointError), match=words):
        decoder_config(gemma4(**changes))


def test_gemma4_unified_has_no_inputs_of_layers_and_no_experts():
    assert decoder_config(hf("Gemma4UnifiedForCausalLM")).layer_input == 0
    for name, value in {"hidden_size_per_layer_input": 8, "enable_moe_block": True}.items():
        with pytest.raises(UnsupportedModelError, match=name):
            decoder_config(hf("Gemma4UnifiedForCausalLM", **{name: value}))


@pytest.mark.format("config", "layouts of transformers 4 and 5", "read")
def test_both_layouts_of_transformers_mean_the_same():
    scaling = {"rope_type": "linear", "factor": 2.0}
    four = hf(rope_theta=5e5, rope_scaling=scaling, torch_dtype="bfloat16")
    older = hf(rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2.0}, torch_dtype="bfloat16")
    five = hf(rope_parameters={**scaling, "rope_theta": 5e5}, dtype="bfloat16")
    assert decoder_config(four) == decoder_config(five) == decoder_config(older)
    assert present(decoder_config(five).ropes[0]).theta == 5e5
    assert present(decoder_config(hf(rope_theta=7.0, rope_scaling=None)).ropes[0]).theta == 7.0


def test_layers_with_a_window_of_olmo_3_keep_their_rotary_embedding():
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
    four = decoder_config(hf("Olmo3ForCausalLM", num_hidden_layers=4, rope_theta=7e5, rope_scaling=yarn))
    kinds = {"full_attention": {**yarn, "rope_theta": 7e5}, "sliding_attention": {"rope_type": "default", "rope_theta": 7e5}}
    five = decoder_config(hf("Olmo3ForCausalLM", num_hidden_layers=4, rope_parameters=kinds))
    assert four == five
    assert [rope.kind for rope in map(present, four.ropes)] == ["default", "default", "default", "yarn"]
    assert four.windows == (4096, 4096, 4096, None)
    plain = decoder_config(hf("Olmo3ForCausalLM"))
    assert {rope.theta for rope in map(present, plain.ropes)} == {5e5}


def test_windows_of_qwen():
    sliding = {"use_sliding_window": True, "sliding_window": 8}
    assert decoder_config(hf("Qwen2ForCausalLM", **sliding, max_window_layers=2)).windows == (None, None, 8)
    assert decoder_config(hf("Qwen2ForCausalLM", sliding_window=8, max_window_layers=0)).windows == (None,) * 3
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert decoder_config(hf("Qwen3ForCausalLM", **sliding, layer_types=kinds)).windows == (8, None, 8)
    with pytest.raises(CheckpointError, match="use_sliding_window"):
        decoder_config(hf("Qwen3ForCausalLM", layer_types=kinds))
    with pytest.raises(CheckpointError, match="2 entries for 3"):
        decoder_config(hf("Qwen3ForCausalLM", **sliding, layer_types=kinds[:2]))


@pytest.mark.format("config", "fields that ask for what no family here computes", "refused")
@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": "absent"}, "architecture none"),
        ({"model_type": "gemma"}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quantization_config"),
        ({"attention_multiplier": 0.5}, "attention_multiplier"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"sliding_window": 64}, "sliding_window"),
        ({"layer_types": ["full_attention", "chunked_attention", "full_attention"]}, "layer_types"),
        ({"dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
        ({"rope_scaling": {"rope_type": "proportional", "factor": 2.0}}, "proportional"),
        ({"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_activation": "gelu"}, "hidden_activation"),
        (
            {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "use_bidirectional_attention": True},
            "bidirectional",
        ),
        ({"embedding_multiplier": 2.0}, "embedding_multiplier"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1]}}, "mrope_section"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(given, names):
    with pytest.raises(UnsupportedModelError, match=names):
        decoder_config(hf(**given))


@pytest.mark.format("config", "fields of impossible values", "refused")
@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"hidden_size": "absent"}, "lacks hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer, got 0"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"num_key_value_heads": 3}, "multiple"),
        ({"head_dim": 7}, "head_dim must be even"),
        ({"attention_bias": 1}, "attention_bias must be true or false"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"rope_scaling": {"rope_type": "linear"}}, "lacks factor"),
        ({"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "partial_rotary_factor": 0.4}, "partial_rotary_factor=0.4"),
        ({"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "no_rope_layers": [1, 0]}, "no_rope_layers"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}}, "lacks long_factor"),
    ],
)
def test_impossible_fields_are_named(given, names):
    with pytest.raises(CheckpointError, match=names):
        decoder_config(hf(**given))


def test_attention_factor_of_yarn():
    def factor(**changes):
        table = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, **changes}
        return present(decoder_config(hf(rope_parameters=table)).ropes[0]).attention_factor

    assert factor() == pytest.approx(0.1 * math.log(4) + 1)
    assert factor(attention_factor=1.5) == 1.5
    assert factor(mscale=2.0) == factor()
    assert factor(mscale=1.0, mscale_all_dim=1.0) == pytest.approx(1)
    assert factor(factor=1.0) == 1.0


def test_yarn_without_a_factor_extends_to_the_models_length():
    table = {"rope_type": "yarn", "original_max_position_embeddings": 128}
    assert present(decoder_config(hf(rope_parameters=table)).ropes[0]).factor == 4.0


def test_gemma_alternates_windows_and_rotary_embeddings():
    gemma2 = decoder_config(hf("Gemma2ForCausalLM", sliding_window=8))
    assert gemma2.windows == (8, None, 8)
    assert (gemma2.scales.attention_cap, gemma2.scales.logits_cap, gemma2.scales.attention) == (50.0, 30.0, 1 / 16)
    assert gemma2.tie_embeddings
    uncapped = decoder_config(hf("Gemma2ForCausalLM", final_logit_softcapping=None, hidden_act="gelu_pytorch_tanh"))
    assert (uncapped.scales.attention_cap, uncapped.scales.logits_cap) == (50.0, None)
    four = hf("Gemma3ForCausalLM", sliding_window_pattern=2, rope_theta=1e6, rope_scaling={"rope_type": "linear", "factor": 8.0})
    gemma3 = decoder_config(four | {"rope_local_base_freq": 5e3, "sliding_window": 8})
    assert gemma3.windows == (8, None, 8)
    assert [(rope.theta, rope.factor) for rope in map(present, gemma3.ropes)] == [(5e3, 1.0), (1e6, 8.0), (5e3, 1.0)]


def test_an_engine_uses_one_set_of_longropes_factors():
    table = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    sizes = {"original_max_position_embeddings": 256, "max_position_embeddings": 512}
    phi = decoder_config(hf("Phi3ForCausalLM", rope_scaling={**table, "type": "su", "rope_type": "su"}, **sizes))
    ropes = [present(config.ropes[0]) for config in (phi, phi.serving(256), phi.serving(257))]
    assert [rope.extended for rope in ropes] == [True, False, True]
    assert ropes[0].attention_factor == pytest.approx(math.sqrt(1 + math.log(2) / math.log(256)))
    partly = decoder_config(hf("Phi3ForCausalLM", partial_rotary_factor=0.5))
    assert present(partly.ropes[0]).rotated_dims == 4


def test_layers_of_smollm3_without_positions():
    every = decoder_config(hf("SmolLM3ForCausalLM", no_rope_layer_interval=2))
    assert [rope is None for rope in every.ropes] == [False, True, False]
    told = hf("SmolLM3ForCausalLM", no_rope_layers=[0, 1, 1], use_sliding_window=True, sliding_window=8)
    assert decoder_config(told).windows == (8, None, None)
    assert present(decoder_config(told).ropes[1]).theta == 2e6


def test_kimi_k2_is_deepseek_v3_by_another_name():
    fields: dict[str, Any] = {**LATENT, "n_group": 1, "topk_group": 1, "n_routed_experts": 6, "routed_scaling_factor": 2.827}
    fields |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "num_nextn_predict_layers": 0}
    kimi, deepseek = (
        decoder_config(hf("DeepseekV3ForCausalLM", model_type=name, **fields)) for name in ("kimi_k2", "deepseek_v3")
    )
    assert kimi == deepseek
    assert MODEL_TYPES["kimi_k2"] == "DeepseekV3ForCausalLM"
    with pytest.raises(UnsupportedModelError, match="model_type"):
        decoder_config(hf("DeepseekV2ForCausalLM", model_type="kimi_k2", **LATENT))


def test_glm_rotates_half_of_a_head_and_begins_with_dense_layers():
    published = {"head_dim": 128, "partial_rotary_factor": 0.5, "rope_theta": 1000000, "rope_scaling": None, "use_qk_norm": True}
    published |= {"n_routed_experts": 160, "num_experts_per_tok": 8, "first_k_dense_replace": 2, "num_nextn_predict_layers": 1}
    published |= {"attention_bias": True, "routed_scaling_factor": 2.5, "moe_intermediate_size": 24}
    config = decoder_config(hf("Glm4MoeForCausalLM", **published))
    assert [present(rope).rotated_dims for rope in config.ropes] == [64] * 3
    assert (config.qk_norm, config.qkv_bias, config.output_bias, config.draft_layers) == ("head", True, False, 1)
    assert config.experts is not None
    assert config.experts.layers == (False, False, True)
    assert (config.experts.count, config.experts.shared_ffn_size, config.experts.routing.scale) == (160, 24, 2.5)
    parameters = {"rope_type": "default", "rope_theta": 1000000, "partial_rotary_factor": 0.5}
    bare = {name: value for name, value in published.items() if name not in ("partial_rotary_factor", "rope_theta")}
    assert decoder_config(hf("Glm4MoeForCausalLM", **bare, rope_parameters=parameters)) == config
    assert decoder_config(hf("Glm4MoeForCausalLM", **bare, rope_theta=1000000)) == config, "a half is the default"
    assert decoder_config(hf("Glm4MoeForCausalLM", first_k_dense_replace=3)).experts is None


def test_dense_glms_rotate_neighbours():
    """Half of each head, in pairs of neighbours; GLM-4-0414 has norms around both blocks, under names of its own."""
    glm, glm4 = (decoder_config(hf(f"{name}ForCausalLM", head_dim=16, tie_word_embeddings=False)) for name in ("Glm", "Glm4"))
    for config in (glm, glm4):
        rope = present(config.ropes[0])
        assert (rope.rotated_dims, rope.interleaved) == (8, True)
        assert (config.qkv_bias, config.output_bias, config.norm_eps) == (True, False, 1.5625e-07)
    assert (glm.norms, glm4.norms) == ("before", "around")
    names = {source.name for rule in weight_rules(glm4) for source in rule.sources}
    norms = {name.removeprefix("model.layers.0.") for name in names if "model.layers.0." in name and "norm" in name}
    assert norms == {
        f"{name}.weight"
        for name in ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
    }


def test_cohere2_has_both_blocks_behind_one_norm():
    config = decoder_config(hf("Cohere2ForCausalLM", num_hidden_layers=4, layer_norm_eps=1e-3, sliding_window=64))
    assert (config.norms, config.layer_norm, config.norm_eps, config.scales.logits) == ("parallel", True, 1e-3, 0.0625)
    assert config.windows == (64, 64, 64, None)
    assert [rope and rope.interleaved for rope in config.ropes] == [True, True, True, None]
    listed = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window_pattern": 1}
    assert decoder_config(hf("Cohere2ForCausalLM", num_hidden_layers=2, **listed)).windows == (None, 4096)


def test_ministral3_says_how_queries_are_scaled():
    yarn = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16384, "mscale": 1.0, "mscale_all_dim": 1.0}
    published = {**yarn, "rope_theta": 1e6, "max_position_embeddings": 16384, "llama_4_scaling_beta": 0.1}
    config = decoder_config(hf("Ministral3ForCausalLM", rope_parameters=published))
    assert config.query_scale == QueryScale(beta=0.1, period=16384)
    assert (present(config.ropes[0]).kind, present(config.ropes[0]).attention_factor) == ("yarn", 1.0)
    assert decoder_config(hf("Ministral3ForCausalLM", rope_parameters=yarn)).query_scale is None
    with pytest.raises(CheckpointError, match="rope parameters lacks original_max_position_embeddings"):
        decoder_config(hf("Ministral3ForCausalLM", rope_parameters={"llama_4_scaling_beta": 0.1}))
    with pytest.raises(UnsupportedModelError, match="llama_4_scaling_beta"):
        decoder_config(hf("MistralForCausalLM", rope_parameters=published))


def test_lfm2_convolves_where_it_does_not_attend():
    """In the words of either version of transformers; the width of the MLP is less than the file says where it is adjusted."""
    old = {"full_attn_idxs": [1], "block_ff_dim": 96, "block_multiple_of": 16, "block_ffn_dim_multiplier": 1.2}
    config = decoder_config(hf("Lfm2ForCausalLM", **old, tie_embedding=True, tie_word_embeddings="absent"))
    assert (config.ffn_size, config.tie_embeddings, config.qk_norm) == (80, True, "head")
    assert config.recurrent == ShortConv(layers=(True, False, True), width=3, channels=32)
    named = {"layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False}
    assert decoder_config(hf("Lfm2ForCausalLM", **named)).ffn_size == 48
    assert decoder_config(hf("Lfm2ForCausalLM")).recurrent is None
    experts = decoder_config(hf("Lfm2MoeForCausalLM", **named, num_experts=4, num_dense_layers=1)).experts
    assert experts is not None
    assert (experts.count, experts.active, experts.layers, experts.routing.correction) == (4, 4, (False, True, True), True)


def test_minimax_m2_as_it_is_published():
    published: dict[str, Any] = {
        "head_dim": 128,
        "rotary_dim": 64,
        "rope_theta": 5000000,
        "num_local_experts": 256,
        "num_experts_per_tok": 8,
    }
    published |= {"scoring_func": "sigmoid", "use_routing_bias": True, "use_qk_norm": True, "qk_norm_type": "per_layer"}
    published |= {"shared_intermediate_size": 0, "attn_type_list": [1, 1, 1], "use_mtp": True, "num_mtp_modules": 3}
    config = decoder_config(hf("MiniMaxM2ForCausalLM", **published))
    assert [present(rope).rotated_dims for rope in config.ropes] == [64] * 3
    assert (config.qk_norm, config.head_dim, present(config.ropes[0]).theta) == ("all", 128, 5e6)
    assert config.experts is not None
    assert (config.experts.count, config.experts.active, config.experts.ffn_size) == (256, 8, 48)
    parameters = {"rope_type": "default", "rope_theta": 5000000, "partial_rotary_factor": 0.5}
    five = {"head_dim": 128, "num_local_experts": 256, "num_experts_per_tok": 8, "rope_parameters": parameters}
    assert decoder_config(hf("MiniMaxM2ForCausalLM", **five)) == config
    wrong = (
        {"scoring_func": "softmax"},
        {"qk_norm_type": "per_head"},
        {"shared_intermediate_size": 8},
        {"attn_type_list": [1, 0, 1]},
    )
    for changed in wrong:
        with pytest.raises(UnsupportedModelError, match=next(iter(changed))):
            decoder_config(hf("MiniMaxM2ForCausalLM", **{**published, **changed}))


def rope_of(architecture: str, **changes: Any) -> Any:
    return present(decoder_config(hf(architecture, **changes)).ropes[0])


@pytest.mark.format("config", "`rope_theta` that is missing or null: the family's own", "read")
@pytest.mark.parametrize(
    ("architecture", "theta"),
    [
        ("LlamaForCausalLM", 1e4),
        ("MixtralForCausalLM", 1e6),
        ("SmolLM3ForCausalLM", 2e6),
        ("MiniMaxM2ForCausalLM", 5e6),
        ("Lfm2ForCausalLM", 1e6),
    ],
)
def test_a_rope_theta_that_is_missing_or_null_is_the_familys(architecture, theta):
    more = {"layer_types": ["full_attention"] * 3} if architecture.startswith("Lfm2") else {}
    for given in ("absent", None):
        assert rope_of(architecture, rope_theta=given, **more).theta == theta
    assert rope_of(architecture, rope_theta=77.0, **more).theta == 77.0


@pytest.mark.format("config", "Ministral 3 without `rope_parameters`: YaRN, as transformers has it", "read")
def test_ministral3_without_rope_parameters_has_its_own_yarn():
    rope = rope_of("Ministral3ForCausalLM", rope_theta=5.0)
    assert (rope.kind, rope.theta, rope.factor, rope.original_max_position_embeddings) == ("yarn", 1e6, 16.0, 16384)
    assert rope.attention_factor == 1.0
    assert decoder_config(hf("Ministral3ForCausalLM")).query_scale == QueryScale(beta=0.1, period=16384)
    plain = decoder_config(hf("Ministral3ForCausalLM", rope_parameters={}))
    assert (present(plain.ropes[0]).kind, plain.query_scale) == ("default", None)


def test_defaults_where_routing_fields_are_null():
    glm = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_hidden_layers": 3}
    routing = present_experts(decoder_config(hf("Glm4MoeForCausalLM", n_group=None, topk_group=None, **glm))).routing
    assert (routing.groups, routing.active_groups) == (1, 1)


def present_experts(config: Any) -> Any:
    assert config.experts is not None
    return config.experts


@pytest.mark.format("config", "`sliding_window: null`", "read")
@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"])
def test_a_window_that_is_null_is_none(architecture):
    changes = {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}
    assert decoder_config(hf(architecture, **changes)).windows == (None,) * 3


@pytest.mark.format("config", "`rope_scaling` of YaRN and linear: a longer context", "read")
@pytest.mark.parametrize(
    ("scaling", "longest"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}, 2048),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}, 512),  # the longer one already
        ({"rope_type": "linear", "factor": 8.0}, 4096),
        ({"rope_type": "dynamic", "factor": 8.0}, 512),  # whose frequencies would depend on the sequence
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}, 512),
    ],
)
def test_scaled_positions_make_the_context_longer(scaling, longest):
    assert decoder_config(hf("Qwen3ForCausalLM", rope_scaling=scaling)).max_position_embeddings == longest


@pytest.mark.format("config", "`attn_factor` of YaRN", "read")
def test_an_attn_factor_is_multiplied_by():
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "attn_factor": 0.8782488562869419}
    assert rope_of("Qwen3ForCausalLM", rope_scaling=scaling).attention_factor == pytest.approx(1.0)


@pytest.mark.format("config", "`rope_parameters` of kinds of layers, with `rope_theta` beside them", "read")
def test_tables_of_kinds_without_theta_have_that_beside_them():
    tables = {kind: {"rope_type": "default"} for kind in ("sliding_attention", "full_attention")}
    config = decoder_config(hf("Gemma3ForCausalLM", rope_parameters=tables, rope_theta=3.0, rope_local_base_freq=5.0))
    assert [present(rope).theta for rope in config.ropes] == [5.0] * 3
    olmo = decoder_config(hf("Olmo3ForCausalLM", rope_parameters=tables, rope_theta=3.0))
    assert {present(rope).theta for rope in olmo.ropes} == {3.0}


def test_lfm2s_own_flag_of_a_tied_head_wins():
    lfm2: dict[str, Any] = {"architecture": "Lfm2ForCausalLM", "layer_types": ["full_attention"] * 3}
    assert not decoder_config(hf(**lfm2, tie_embedding=False, tie_word_embeddings=True)).tie_embeddings
    assert not decoder_config(hf(**lfm2, tie_word_embeddings=False)).tie_embeddings
    assert decoder_config(hf(**lfm2)).tie_embeddings
