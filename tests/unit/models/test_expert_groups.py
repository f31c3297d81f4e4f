"""How many groups of devices share the experts by default: what a device gets is what the Mosaic grouped matmul takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding

from jaxserve.models.config import DecoderConfig
from jaxserve.models.experts import AXES
from jaxserve.models.registry import decoder_config
from jaxserve.models.shards import expert_groups, require_expert_groups, require_shards
from pallas_kernels import hopper
from pallas_kernels.grouped_matmul import mosaic_gpu_support
from pallas_kernels.grouped_matmul.problem import GroupedProblem
from pallas_kernels.registry import Target
from sharding import make_mesh, partition_spec
from tests.support.families import hf_config

pytestmark = pytest.mark.skipif(
    jax.__version_info__ < hopper.OLDEST_JAX, reason="NOT CHECKED: Mosaic GPU kernels need jax 0.11.2"
)

H100 = Target("gpu", (9, 0))
MODELS: dict[str, dict[str, Any]] = {
    "gpt-oss-20b": {
        "architectures": ["GptOssForCausalLM"],
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
    },
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
    },
    "deepseek-v2-lite": {
        **hf_config("deepseek_v2"),
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "n_routed_experts": 64,
        "num_experts_per_tok": 6,
        "n_shared_experts": 2,
    },
    "qwen1.5-moe-a2.7b": {
        "architectures": ["Qwen2MoeForCausalLM"],
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_experts": 60,
        "num_experts_per_tok": 4,
    },
}
COMMON = {
    "vocab_size": 1000,
    "num_hidden_layers": 1,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
}


def model(name: str) -> DecoderConfig:
    return decoder_config({**COMMON, **MODELS[name]})


def widths(config: DecoderConfig, size: int, groups: int) -> list[tuple[int, int, int]]:
    """Matrices, inputs and outputs of both grouped matmuls of a device, from how its parameters are divided."""
    assert config.experts is not None
    count, embed, local = config.experts.count, config.hidden_size, config.experts.ffn_size // size
    mesh = make_mesh(size // groups, expert=groups)
    shapes = {"gate_up": (count, embed, size, 2 * local), "down": (count, size, local, embed)}
    x, e, s, f = NamedSharding(mesh, partition_spec(AXES["up"])).shard_shape(shapes["gate_up"])
    up = (x, e, s * f)
    x, s, f, e = NamedSharding(mesh, partition_spec(AXES["down"])).shard_shape(shapes["down"])
    return [up, (x, s * f, e)]


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("name", MODELS)
def test_the_mosaic_kernel_takes_what_a_device_gets(name: str, size: int) -> None:
    config = model(name)
    groups = expert_groups(config, size, H100)
    require_shards(config, size)
    require_expert_groups(config, size, groups)
    held = 0
    for matrices, inputs, outputs in widths(config, size, groups):
        bfloat16 = jnp.dtype(jnp.bfloat16)
        problem = GroupedProblem(512, matrices, inputs, outputs, bfloat16, bfloat16, 512)
        assert mosaic_gpu_support.supports(problem) is None
        held += matrices * inputs * outputs
    assert config.experts is not None
    # Nothing is padded: the devices hold as many numbers as the experts have.
    assert held * size == config.experts.count * 3 * config.hidden_size * config.experts.ffn_size


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("gpt-oss-20b", [1, 2, 4, 8]),
        ("qwen3-30b-a3b", [1, 1, 1, 2]),
        ("deepseek-v2-lite", [1, 1, 2, 4]),
        ("qwen1.5-moe-a2.7b", [1, 1, 2, 4]),
    ],
)
def test_as_few_groups_as_will_do(name: str, chosen: list[int]) -> None:
    assert [expert_groups(model(name), size, H100) for size in (1, 2, 4, 8)] == chosen


@pytest.mark.parametrize("target", [Target("cpu"), Target("gpu", (8, 0)), Target("gpu", (10, 0))], ids=str)
def test_one_group_where_there_is_no_such_kernel(target: Target) -> None:
    assert expert_groups(model("gpt-oss-20b"), 8, target) == 1


def test_one_group_where_no_number_of_them_would_help() -> None:
    config = model("qwen3-30b-a3b")
    assert config.experts is not None
    assert expert_groups(replace(config, experts=replace(config.experts, ffn_size=96)), 8, H100) == 1
    assert expert_groups(replace(config, experts=replace(config.experts, count=127)), 8, H100) == 1
    assert expert_groups(replace(config, experts=None), 8, H100) == 1
