"""Decoders by name: a checkpoint's own, or one of a shape that the planner knows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from jaxserve.errors import ConfigError, UnsupportedModelError
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.config import DecoderConfig, RopeConfig
from jaxserve.models.registry import decoder_config
from jaxserve.planner import catalogue
from jaxserve.planner.shape import ModelShape

NORM_EPS = 1e-5  # a constant in the program: what it costs does not depend on it


def decoder(name: str, layers: int | None) -> DecoderConfig:
    """The decoder of a checkpoint directory, or of a planner's shape, cut to its first `layers` layers if given.

    Raises:
        ConfigError: no such shape and no such directory, or more layers than it has.
        UnsupportedModelError: a shape that the engine's decoder does not have.
        CheckpointError: a config.json that cannot be read.
    """
    config = decoder_config(read_hf_config(Path(name))) if Path(name).is_dir() else from_shape(catalogue.model(name))
    if layers is None:
        return config
    if layers > config.num_layers:
        raise ConfigError(f"layers is {layers}, but {name} has {config.num_layers}", param="layers")
    return replace(config, num_layers=layers, windows=config.windows[:layers])


def from_shape(shape: ModelShape) -> DecoderConfig:
    """A decoder with the sizes of a planner's shape; constants that it lacks (rotary base, epsilon) are placeholders.

    Raises:
        UnsupportedModelError: experts, latent attention or sinks, which the engine does not have.
    """
    missing = {"mixture of experts": shape.experts, "latent attention": shape.latent, "attention sinks": shape.sinks}
    lacks = [name for name, present in missing.items() if present]
    if lacks:
        raise UnsupportedModelError(f"{shape.name}: the engine does not serve models with {' and '.join(lacks)}", param="model")
    return DecoderConfig(
        architecture="Qwen3ForCausalLM" if shape.qk_norm else "Qwen2ForCausalLM" if shape.qkv_bias else "LlamaForCausalLM",
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        ffn_size=shape.ffn_size,
        norm_eps=NORM_EPS,
        rope=RopeConfig(),
        tie_embeddings=shape.tie_embeddings,
        qkv_bias=shape.qkv_bias,
        output_bias=shape.output_bias,
        mlp_bias=shape.mlp_bias,
        qk_norm=shape.qk_norm,
        activation="silu",
        windows=shape.windows,
        max_position_embeddings=shape.max_position_embeddings,
        dtype="bfloat16",
        eos_token_ids=(),
    )
