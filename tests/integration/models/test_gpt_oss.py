import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.models.config import DecoderConfig, Routing
from jaxserve.models.families.gpt_oss import SWIGLU
from jaxserve.models.mlp import ACTIVATIONS, CLAMP, SHARPNESS
from jaxserve.models.registry import decoder_config

# As published, but for its size and the list of layer types.
PUBLISHED = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "eos_token_id": 200002,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"], "quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}


def read(**changes: object) -> DecoderConfig:
    return decoder_config({name: value for name, value in (PUBLISHED | changes).items() if value != "absent"})


def test_the_published_config():
    config = read()
    assert config.windows == (128, None, 128, None)
    assert (config.qkv_bias, config.output_bias, config.mlp_bias, config.sinks) == (True, True, True, True)
    assert config.dtype == "bfloat16"
    assert config.experts is not None
    assert (config.experts.count, config.experts.active, config.experts.ffn_size) == (32, 4, 2880)
    assert config.experts.routing == Routing(bias=True)
    (rope,) = set(config.ropes)
    assert rope is not None
    assert (rope.kind, rope.theta, rope.factor, rope.truncate) == ("yarn", 150000.0, 32.0, False)


def test_what_a_config_leaves_out_is_as_published():
    left_out = (
        "attention_bias",
        "head_dim",
        "num_key_value_heads",
        "rms_norm_eps",
        "rope_theta",
        "sliding_window",
        "swiglu_limit",
    )
    assert read(**dict.fromkeys(left_out, "absent"), rope_scaling=None) == read()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_clamped_swiglu(dtype):
    """(up + 1) * gate * sigmoid(1.702 gate), the gate bounded above and up on both sides by 7, which the goldens hardly reach."""
    gates = ups = [-30.0, -7.5, -7.0, -3.0, -0.5, 0.0, 1.0, 6.5, 7.0, 8.0, 40.0]
    gate, up = (np.array(each, dtype) for each in zip(*itertools.product(gates, ups), strict=True))
    found = ACTIVATIONS["swiglu_clamped"](jnp.asarray(gate), jnp.asarray(up))
    assert found.dtype == dtype
    wanted = [
        (max(-7.0, min(u, 7.0)) + 1) * min(g, 7.0) / (1 + math.exp(-1.702 * min(g, 7.0)))
        for g, u in itertools.product(gates, ups)
    ]
    np.testing.assert_allclose(np.asarray(found, np.float32), wanted, rtol=1e-5 if dtype == "float32" else 0.03, atol=1e-20)


def test_the_constants_are_those_of_the_activation():
    assert dict(SWIGLU) == {"swiglu_limit": CLAMP, "swiglu_alpha": SHARPNESS}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"swiglu_limit": 5.0}, "swiglu_limit=5.0"),
        ({"swiglu_alpha": 1.0}, "swiglu_alpha=1.0"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"layer_types": ["chunked_attention"] * 4}, "layer_types"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quant_method='hqq'"),
    ],
)
def test_what_would_change_the_mathematics_is_refused(changes, names):
    with pytest.raises(UnsupportedModelError, match=names):
        read(**changes)


def test_more_active_experts_than_there_are():
    with pytest.raises(CheckpointError, match="num_experts_per_tok=33 is more than the 32"):
        read(num_experts_per_tok=33)
