"""gpt-oss (OpenAI 2025): experts with a clamped SwiGLU in every layer, attention sinks, a window in every other layer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from jaxserve.models.config import DecoderConfig, Experts, Routing
from jaxserve.models.families.common import common_config, sliding_layers, windows_of
from jaxserve.models.fields import HfFields, with_defaults
from jaxserve.models.rope_config import rope_from_hf
from jaxserve.models.rules import Packing, Path, Source, WeightRule, decoder_rules, whole

ARCHITECTURE = "GptOssForCausalLM"
MODEL_TYPE = "gpt_oss"

# What the activation `swiglu_clamped` has; not imported from there, since planners read configs without jax.
SWIGLU: Mapping[str, float] = MappingProxyType({"swiglu_limit": 7.0, "swiglu_alpha": 1.702})
_LONGEST = 131072
_THETA = 150000.0
_YARN: Mapping[str, Any] = MappingProxyType(
    {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    }
)


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a gpt-oss config.json describes; `attention_bias` covers all four attention projections.

    Raises UnsupportedModelError, CheckpointError: as `common_config` and `sliding_layers`; constants of the SwiGLU that differ.
    """
    fields = HfFields(hf)
    for name, constant in SWIGLU.items():
        if fields.number(name, constant) != constant:
            raise fields.unsupported(name, f"the clamped SwiGLU has {constant}")
    layers, limit = fields.integer("num_hidden_layers"), fields.integer("max_position_embeddings", _LONGEST)
    sliding = sliding_layers(fields, lambda layer: layer % 2 == 0)
    bias = fields.flag("attention_bias", True)
    rope = {
        "rope_theta": _THETA,
        "rope_parameters": dict(_YARN),
        **{name: value for name, value in hf.items() if value is not None},
    }
    return common_config(
        # The published files do not say their dtype; MXFP4 is exact in bfloat16, and their other tensors have it.
        {**with_defaults(hf, rms_norm_eps=1e-5), "dtype": hf.get("dtype") or hf.get("torch_dtype") or "bfloat16"},
        model_type=MODEL_TYPE,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=True,
        windows=windows_of(sliding, fields.integer("sliding_window", 128)),
        max_position_embeddings=_LONGEST,
        num_kv_heads=None if "num_key_value_heads" in hf else 8,
        head_dim=64,
        reads=frozenset({"num_local_experts"}),
        ropes=(rope_from_hf(rope, limit),) * layers,
        activation="swiglu_clamped",
        sinks=True,
        experts=_experts(fields, layers),
    )


def _experts(fields: HfFields, layers: int) -> Experts:
    return Experts(
        count=fields.integer("num_local_experts", 128),
        active=fields.integer("num_experts_per_tok", 4),
        ffn_size=fields.integer("intermediate_size"),
        layers=(True,) * layers,
        routing=Routing(bias=True),
    )


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    return decoder_rules(config, experts=_stacked) + [_sinks(config, layer) for layer in range(config.num_layers)]


def _sinks(config: DecoderConfig, layer: int) -> WeightRule:
    source = Source(f"model.layers.{layer}.self_attn.sinks", (config.num_heads,), config.num_heads)
    return WeightRule(("layers", str(layer), "attention", "sinks"), (source,), Packing.COLUMNS)


def _stacked(config: DecoderConfig, path: Path, prefix: str) -> list[WeightRule]:
    """Each projection is one tensor of all experts' matrices [in, out], in which the columns of gate and up alternate."""
    experts, embed = config.experts, config.hidden_size
    assert experts is not None
    count, ffn, here, block = experts.count, experts.ffn_size, (*path, "mlp"), f"{prefix}.mlp"
    part = partial(Source, experts=count)
    both = partial(part, rows=2 * ffn, row_step=2)
    order = [(expert, row) for expert in range(count) for row in (0, 1)]
    weight, bias, down = (f"{block}.experts.{name}" for name in ("gate_up_proj", "gate_up_proj_bias", "down_proj"))
    inputs = [both(weight, (ffn, embed), first_row=row, transposed=True, expert=expert) for expert, row in order]
    biases = [both(bias, (ffn,), first_row=row, expert=expert) for expert, row in order]
    outputs = [part(down, (embed, ffn), transposed=True, expert=expert) for expert in range(count)]
    return [
        WeightRule((*here, "router"), (Source(f"{block}.router.weight", (count, embed)),), Packing.TRANSPOSED),
        whole((*here, "router_bias"), f"{block}.router.bias", (count,)),
        WeightRule((*here, "gate_up"), tuple(inputs), Packing.COLUMNS, count),
        WeightRule((*here, "gate_up_bias"), tuple(biases), Packing.COLUMNS, count),
        WeightRule((*here, "down"), tuple(outputs), Packing.ROWS, count),
        whole((*here, "down_bias"), f"{down}_bias", (count, embed)),
    ]
