"""ModernBERT (Warner et al. 2024): rotary positions, gated MLPs, and windows in two of three layers; gte-modernbert."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.models.config import DecoderConfig
from jaxserve.models.encoder.rules import head_rules, norm_rules
from jaxserve.models.encoder_config import EncoderConfig
from jaxserve.models.families.common import common_config, sliding_layers, windows_of
from jaxserve.models.fields import HfFields
from jaxserve.models.rope_config import rope_from_hf, ropes_by_kind
from jaxserve.models.rules import Output, Packing, Source, WeightRule, columns, whole

ARCHITECTURE = "ModernBertModel"
MODEL_TYPE = "modernbert"

_LONGEST = 8192
_GLOBAL_THETA, _LOCAL_THETA = 160000.0, 10000.0


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The encoder that a ModernBERT config.json describes."""
    fields = HfFields(hf)
    for name, value in (("hidden_activation", "gelu"), ("classifier_activation", "gelu")):
        if hf.get(name, value) != value:
            raise fields.unsupported(name, f"supported is {value}")
    for name in ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"):
        if fields.flag(name, False):
            raise fields.unsupported(name, "supported is false")
    every, limit = fields.integer("global_attn_every_n_layers", 3), fields.integer("max_position_embeddings", _LONGEST)
    sliding = sliding_layers(fields, lambda layer: layer % every != 0)
    thetas = fields.number("local_rope_theta", _LOCAL_THETA), fields.number("global_rope_theta", _GLOBAL_THETA)
    ropes = ropes_by_kind(fields, limit, thetas)
    if ropes is None:
        scaled = {"rope_scaling": hf.get("rope_scaling")}  # of both, as in transformers
        ropes = rope_from_hf({"rope_theta": thetas[0], **scaled}, limit), rope_from_hf({"rope_theta": thetas[1], **scaled}, limit)
    local, whole_rope = ropes
    encoder = EncoderConfig(
        positions=0, first_position=0, token_types=0, norms_first=True, norm_bias=False, head="gelu", head_bias=False
    )
    return common_config(
        {**hf, "rms_norm_eps": fields.number("norm_eps", 1e-5)},
        model_type=MODEL_TYPE,
        qkv_bias=False,
        output_bias=False,
        tie_embeddings=True,
        windows=windows_of(sliding, fields.integer("local_attention", 128) // 2 + 1),  # so many to either side, and itself
        max_position_embeddings=_LONGEST,
        reads=frozenset({"hidden_act", "hidden_activation"}),
        ropes=tuple(local if each else whole_rope for each in sliding),
        activation="gelu",
        encoder=encoder,
        bidirectional=True,
    )


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    embed, ffn, prefix = config.hidden_size, config.ffn_size, "" if config.architecture == ARCHITECTURE else "model."
    norms = [f"{prefix}embeddings.norm"]
    rules = [whole(("embedding", "table"), f"{prefix}embeddings.tok_embeddings.weight", (config.vocab_size, embed))]
    heads, width = config.num_heads, config.num_heads * config.head_dim
    for layer in range(config.num_layers):
        path, here = ("layers", str(layer)), f"{prefix}layers.{layer}"
        norms += [*([f"{here}.attn_norm"] if layer else []), f"{here}.mlp_norm"]
        outputs = [Output(f"{here}.attn.{name}", width, heads) for name in ("query", "key", "value")]
        gate_up = [Output(f"{here}.mlp.{name}", ffn) for name in ("gate", "up")]
        rules += [
            columns((*path, "attention", "qkv"), outputs, embed, f"{here}.attn.Wqkv"),
            WeightRule((*path, "attention", "out"), (Source(f"{here}.attn.Wo.weight", (embed, width)),), Packing.ROWS),
            columns((*path, "mlp", "gate_up"), gate_up, embed, f"{here}.mlp.Wi"),
            WeightRule((*path, "mlp", "down"), (Source(f"{here}.mlp.Wo.weight", (embed, ffn)),), Packing.ROWS),
        ]
    norms.append(f"{prefix}final_norm")
    return [*rules, *norm_rules(config, ("norms",), norms), *head_rules(config, "head.dense", "classifier", "head.norm")]
