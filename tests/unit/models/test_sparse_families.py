"""What config.json says of experts, in the families whose checkpoints store each expert's matrices by themselves."""

import pytest

from jaxserve.errors import CheckpointError
from jaxserve.models.config import Routing
from jaxserve.models.registry import decoder_config, weight_rules
from tests.support.families import COMMON

FOUR = {**COMMON, "num_hidden_layers": 4, "num_key_value_heads": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


def config(architecture, **changes):
    return decoder_config({**FOUR, "architectures": [f"{architecture}ForCausalLM"], **changes})


def test_mixtral_has_experts_everywhere():
    experts = config("Mixtral", num_local_experts=4).experts
    assert (experts.count, experts.active, experts.ffn_size, experts.layers) == (4, 2, 64, (True,) * 4)
    assert experts.routing == Routing()
    assert config("Mixtral").windows == (None,) * 4
    assert config("Mixtral", sliding_window=9).windows == (9,) * 4


def test_which_layers_of_qwen_have_experts():
    def layers(**changes):
        return config("Qwen3Moe", num_experts=4, **changes).experts.layers

    assert layers() == (True,) * 4
    assert layers(decoder_sparse_step=2) == (False, True, False, True)
    assert layers(mlp_only_layers=[0, 3]) == (False, True, True, False)
    assert layers(mlp_only_layers=[1], decoder_sparse_step=2) == (False, False, False, True)
    assert config("Qwen3Moe", num_experts=0).experts is None
    assert config("Qwen3Moe", num_experts=4, decoder_sparse_step=5).experts is None


def test_what_the_families_of_qwen_decide():
    second, third = config("Qwen2Moe", shared_expert_intermediate_size=48), config("Qwen3Moe", num_local_experts=16)
    assert (second.experts.count, second.experts.shared_ffn_size, second.experts.shared_gate) == (60, 48, True)
    assert (third.experts.count, third.experts.shared_ffn_size, third.experts.shared_gate) == (16, 0, False)
    assert second.experts.routing == third.experts.routing == Routing(normalize=False)
    assert config("Qwen2Moe", norm_topk_prob=True).experts.routing == Routing()
    assert (second.qkv_bias, third.qkv_bias, second.qk_norm, third.qk_norm) == (True, False, None, "head")
    slides = {"use_sliding_window": True, "sliding_window": 7}
    assert config("Qwen2Moe", **slides, max_window_layers=3).windows == (7, None, 7, None)
    assert config("Qwen3Moe", **slides).windows == (7,) * 4


def test_names_of_tensors():
    second, mixtral = config("Qwen2Moe", num_experts=3, mlp_only_layers=[0]), config("Mixtral", num_local_experts=3)
    names = {rule.path[1:]: [source.name for source in rule.sources] for rule in weight_rules(second)}
    mlp = "model.layers.1.mlp"
    assert names["1", "mlp", "gate_up"] == [f"{mlp}.experts.{j}.{part}_proj.weight" for j in range(3) for part in ("gate", "up")]
    assert names["1", "mlp", "down"] == [f"{mlp}.experts.{j}.down_proj.weight" for j in range(3)]
    assert names["1", "mlp", "router"] == [f"{mlp}.gate.weight"]
    assert names["1", "mlp", "shared_gate"] == [f"{mlp}.shared_expert_gate.weight"]
    assert names["1", "mlp", "shared", "down"] == [f"{mlp}.shared_expert.down_proj.weight"]
    assert names["0", "mlp", "down"] == ["model.layers.0.mlp.down_proj.weight"]
    names = {rule.path[1:]: [source.name for source in rule.sources] for rule in weight_rules(mixtral)}
    block = "model.layers.1.block_sparse_moe"
    assert names["1", "mlp", "gate_up"] == [f"{block}.experts.{j}.{part}.weight" for j in range(3) for part in ("w1", "w3")]
    assert names["1", "mlp", "down"] == [f"{block}.experts.{j}.w2.weight" for j in range(3)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_experts_per_tok": 5}, "num_experts_per_tok=5 is more than the 4 experts"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok must be a positive integer, got 0"),
        ({"num_experts": -1}, "num_experts must be an integer, 0 or more, got -1"),
        ({"moe_intermediate_size": "8"}, "moe_intermediate_size must be a positive integer, got '8'"),
        ({"mlp_only_layers": [0, "1"]}, "mlp_only_layers must be a list of integers, 0 or more"),
        ({"mlp_only_layers": 1}, "mlp_only_layers must be a list of integers, 0 or more, got 1"),
        ({"norm_topk_prob": 1}, "norm_topk_prob must be true or false, got 1"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step must be a positive integer, got 0"),
    ],
)
def test_odd_values_are_named(changes, words):
    with pytest.raises(CheckpointError, match=words):
        config("Qwen2Moe", **{"num_experts": 4, **changes})
