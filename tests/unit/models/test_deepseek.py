"""What config.json says of latent attention, experts and their groups, and what is refused."""

import math
from dataclasses import replace
from typing import Any

import pytest

from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.config import Routing
from jaxserve.models.latent import Indexer, Latent
from jaxserve.models.mtp import module_config
from jaxserve.models.registry import MODULES, decoder_config, weight_rules
from jaxserve.weights.check import check_tensors
from tests.golden.reading import DATA

# The fields that count of the config.json files that DeepSeek published.
V2_LITE: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "vocab_size": 102400,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "max_position_embeddings": 163840,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
    },
}
V3: dict[str, Any] = V2_LITE | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1,
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    },
}
V3["rope_scaling"] = {**V3["rope_scaling"], "mscale": 1.0, "mscale_all_dim": 1.0}
V32: dict[str, Any] = V3 | {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "max_position_embeddings": 163840,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 2048,
}
GLM5: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "vocab_size": 154880,
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 1,
    "indexer_rope_interleave": True,
}


def test_the_published_models():
    lite, large = decoder_config(V2_LITE), decoder_config(V3)
    assert lite.num_parameters == 15_706_484_224
    assert large.num_parameters == 671_026_419_200
    assert lite.latent == Latent(query_rank=None, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
    rope = large.ropes[0]
    assert rope is not None
    assert (large.num_kv_heads, large.head_dim, rope.rotated_dims) == (1, 576, 64)
    assert lite.experts is not None
    assert large.experts is not None
    assert lite.experts.routing == Routing(normalize=False)
    assert large.experts.routing == Routing(
        score="sigmoid", scale=2.5, correction=True, groups=8, active_groups=4, group_score="top2"
    )
    assert [lite.experts.layers.index(True), large.experts.layers.index(True)] == [1, 3]
    assert (lite.experts.shared_ffn_size, large.experts.shared_ffn_size) == (2816, 2048)
    assert large.draft_layers == 1
    # YaRN's factor is in the scores alone: cosine and sine have the quotient of two equal ones.
    assert rope.attention_factor == 1.0
    assert large.scales.attention == pytest.approx(192**-0.5 * (0.1 * math.log(40) + 1) ** 2)
    assert decoder_config(V3 | {"rope_scaling": None}).scales.attention == pytest.approx(192**-0.5)


def test_an_indexer_has_a_key_behind_the_latent():
    sparse, like_v3 = decoder_config(V32), decoder_config(V3)
    assert sparse.latent is not None
    assert sparse.latent.indexer == Indexer(heads=64, dim=128, top_k=2048, layers=(True,) * 61)
    assert (sparse.head_dim, sparse.latent.key_dim, sparse.latent.cached) == (704, 576, 704)
    # Queries, key and weights of heads, and a norm with a bias.
    assert sparse.num_parameters - like_v3.num_parameters == 61 * (1536 * 64 * 128 + 7168 * (128 + 64) + 2 * 128)
    assert (sparse.experts, sparse.scales, sparse.ropes) == (like_v3.experts, like_v3.scales, like_v3.ropes)
    names = {source.name: source.stored_shape for rule in weight_rules(sparse) for source in rule.sources}
    block = "model.layers.60.self_attn.indexer"
    assert {name: shape for name, shape in names.items() if name.startswith(block)} == {
        f"{block}.wq_b.weight": (8192, 1536),
        f"{block}.wk.weight": (128, 7168),
        f"{block}.weights_proj.weight": (64, 7168),
        f"{block}.k_norm.weight": (128,),
        f"{block}.k_norm.bias": (128,),
    }
    kinds = {"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 58, "layer_types": ["indexed_attention"] * 61}
    assert decoder_config({**V32, **kinds, "first_k_dense_replace": None}) == sparse


def test_layers_of_glm_5_may_share_what_an_indexer_chose():
    own = decoder_config(GLM5)
    assert own.latent is not None
    assert own.latent.indexer == Indexer(heads=32, dim=128, top_k=2048, layers=(True,) * 78, interleaved=True)
    assert own.num_parameters == pytest.approx(744e9, rel=2e-3)
    assert not own.shares_choices
    # As GLM-5.2 has it: the first three layers choose, then every fourth.
    kinds = ["full" if layer < 3 or (layer - 2) % 4 == 0 else "shared" for layer in range(78)]
    shared = decoder_config(GLM5 | {"indexer_types": kinds, "index_topk_pattern": "F" * 78})
    by_letters = decoder_config(GLM5 | {"index_topk_pattern": "".join(kind[0].upper() for kind in kinds)})
    by_number = decoder_config(GLM5 | {"index_topk_freq": 4, "index_skip_topk_offset": 3})
    by_list = decoder_config(GLM5 | {"index_topk_pattern": kinds})
    assert shared == by_letters == by_number == by_list
    assert shared.shares_choices
    assert shared.head_dim == own.head_dim == 704
    one = 2048 * 32 * 128 + 6144 * (128 + 32) + 2 * 128
    assert own.num_parameters - shared.num_parameters == kinds.count("shared") * one
    names = {source.name for rule in weight_rules(shared) for source in rule.sources}
    holders = {int(name.split(".")[2]) for name in names if "indexer" in name}
    assert holders == {layer for layer, kind in enumerate(kinds) if kind == "full"}


def test_a_module_has_an_indexer_of_its_own():
    kinds = {"mlp_layer_types": ["dense", "sparse", "sparse"], "layer_types": ["indexed_attention"] * 3}
    for hf in (V32, GLM5 | {"indexer_types": ["full", "shared", "shared"]}):
        given = hf | kinds | {"num_hidden_layers": 3}
        family = MODULES[given["architectures"][0]]
        last = decoder_config(family.with_module(given, decoder_config(given)))
        module = module_config(last, family.names(3), (), normed_on=family.normed_on)
        assert module.indexer_of(0) is not None
        assert module.experts is not None
        assert not module.shares_choices
        names = {source.name for rule in weight_rules(module) for source in rule.sources}
        assert {"model.layers.3.eh_proj.weight", "model.layers.3.self_attn.indexer.wk.weight"} <= names


def test_every_second_layer_and_none_at_all():
    some = decoder_config(V2_LITE | {"moe_layer_freq": 2, "first_k_dense_replace": 3, "num_hidden_layers": 8})
    assert some.experts is not None
    assert [layer for layer, sparse in enumerate(some.experts.layers) if sparse] == [4, 6]
    assert decoder_config(V2_LITE | {"first_k_dense_replace": 27}).experts is None


@pytest.mark.parametrize(
    ("hf", "error", "words"),
    [
        (V2_LITE | {"topk_method": "noaux_tc"}, UnsupportedModelError, "topk_method='noaux_tc' is not supported; supported are"),
        (V2_LITE | {"norm_topk_prob": True}, UnsupportedModelError, "norm_topk_prob=True is not supported"),
        (V2_LITE | {"num_key_value_heads": 4}, UnsupportedModelError, "num_key_value_heads=4 is not supported"),
        (V3 | {"scoring_func": "softmax"}, UnsupportedModelError, "scoring_func='softmax' .* this architecture has 'sigmoid'"),
        (V3 | {"rope_interleave": False}, UnsupportedModelError, "rope_interleave=False is not supported"),
        (V3 | {"attention_bias": True}, UnsupportedModelError, "attention_bias=True is not supported"),
        (V3 | {"n_group": 7}, CheckpointError, "num_experts_per_tok=8 cannot be chosen of 256 experts in 7 groups"),
        (V3 | {"topk_group": 1, "n_group": 64}, CheckpointError, "in 64 groups, 1 of them active"),
        (V32 | {"layer_types": ["full_attention"] * 61}, UnsupportedModelError, "every layer has 'indexed_attention'"),
        (V32 | {"mlp_layer_types": ["sparse", "dense"]}, UnsupportedModelError, "dense layers come first, then sparse ones"),
        (V32 | {"index_head_dim": 48}, CheckpointError, "index_head_dim=48 is less than the 64 that are rotated of it"),
        (V32 | {"index_topk": 0}, CheckpointError, "index_topk must be a positive integer, got 0"),
        (V32 | {"q_lora_rank": None}, CheckpointError, "lacks q_lora_rank"),
        (V32 | {"indexer_rope_interleave": True}, UnsupportedModelError, "this architecture has False"),
        (GLM5 | {"indexer_types": ["full"] * 77}, CheckpointError, "for each of 78 layers, the first one 'full', got"),
        (GLM5 | {"index_topk_pattern": "S" * 78}, CheckpointError, "the first one 'full', got"),
        (GLM5 | {"index_topk_pattern": "F" * 77 + "X"}, CheckpointError, "must be 'full' or 'shared' for each"),
        (V3 | {"kv_lora_rank": None}, CheckpointError, "lacks kv_lora_rank"),
    ],
)
def test_refused(hf, error, words):
    with pytest.raises(error, match=words):
        decoder_config(hf)


def test_layers_that_draft_are_passed_over(caplog):
    config = decoder_config(read_hf_config(DATA / "deepseek-v3-groups"))
    rules = weight_rules(config)
    shapes = {source.name: source.stored_shape for rule in rules for source in rule.sources}
    dtypes = dict.fromkeys([*shapes, "model.layers.2.eh_proj.weight", "model.layers.3.eh_proj.weight"], "bfloat16")
    assert (config.num_layers, config.draft_layers) == (2, 1)
    with caplog.at_level("INFO", "jaxserve"):
        check_tensors(config, rules, shapes | {"model.layers.2.eh_proj.weight": (4, 8)}, dtypes)
    assert caplog.messages == ["no part of the model, but of layers that guess further tokens (method 'mtp'): 1 tensors"]
    for wrong, layer in ((config, 3), (replace(config, draft_layers=0), 2)):
        with pytest.raises(CheckpointError, match=f"1 unexpected: model.layers.{layer}.eh_proj.weight"):
            check_tensors(wrong, rules, shapes | {f"model.layers.{layer}.eh_proj.weight": (4, 8)}, dtypes)
