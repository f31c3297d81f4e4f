"""From config.json to a shape, as the engine reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.errors import UnsupportedModelError
from jaxserve.models.config import DecoderConfig
from jaxserve.models.fields import HfFields
from jaxserve.models.registry import MODEL_TYPES, decoder_config
from jaxserve.planner.shape import ModelShape


def shape_from_hf(hf: Mapping[str, Any], name: str, where: str = "config.json") -> ModelShape:
    """The shape that a parsed config.json describes, but for how the checkpoint is quantized: plans have formats of their own.

    Raises:
        UnsupportedModelError: a model type or a value that jaxserve does not have.
        CheckpointError: a field that is missing or impossible, named.
    """
    kind, fields = hf.get("model_type"), HfFields(hf, where)
    nominal = fields.number("nominal_billions") if fields.has("nominal_billions") else None
    if kind not in MODEL_TYPES:
        raise UnsupportedModelError(
            f"{where}: model_type {kind!r} is not known to the planner; known are {', '.join(MODEL_TYPES)}", param="model"
        )
    plain = {key: value for key, value in hf.items() if key != "quantization_config"}
    return shape_of(decoder_config(plain | {"architectures": [MODEL_TYPES[str(kind)]]}), name, nominal)


def shape_of(decoder: DecoderConfig, name: str, nominal_billions: float | None = None) -> ModelShape:
    """Of a model, or of a draft head. Raises UnsupportedModelError for a model without a KV cache."""
    if decoder.bidirectional:
        raise UnsupportedModelError(
            f"{name}: {decoder.architecture} has no KV cache to plan: its tokens see those behind them", param="model"
        )
    return ModelShape(
        name=name,
        nominal_billions=nominal_billions,
        vocab_size=decoder.vocab_size,
        hidden_size=decoder.hidden_size,
        num_heads=decoder.num_heads,
        num_kv_heads=decoder.num_kv_heads,
        head_dim=decoder.head_dim,
        ffn_size=decoder.ffn_size,
        windows=tuple(window for layer, window in enumerate(decoder.windows) if decoder.recurrent_of(layer) is None),
        max_position_embeddings=decoder.max_position_embeddings,
        tie_embeddings=decoder.tie_embeddings,
        qkv_bias=decoder.qkv_bias,
        output_bias=decoder.output_bias,
        mlp_bias=decoder.mlp_bias,
        norms=decoder.norm_parameters,
        heads_norms=decoder.qk_norm == "all",
        sinks=decoder.sinks,
        experts=decoder.experts,
        latent=decoder.latent,
        fed=decoder.fed,
        recurrent=decoder.recurrent,
        output_gate=decoder.output_gate,
        heads=decoder.heads,
        kv_sources=decoder.kv_sources,
        gated=decoder.gated,
        ffn_sizes=decoder.ffn_sizes,
        layer_input=decoder.layer_input,
        layer_scales=decoder.layer_scales,
    )
