"""Modules for multi-token prediction, which checkpoints of DeepSeek-V3 have behind the last layer (DeepSeek-AI 2024, 2.2)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from jaxserve.models.config import DecoderConfig, Fed
from jaxserve.models.rules import LayerRules, Packing, Source, WeightRule, mlp_rules, whole


def module_prefix(layer: int) -> str:
    """What the names of a module's tensors begin with."""
    return f"model.layers.{layer}."


def module_config(model: DecoderConfig, names: Collection[str]) -> DecoderConfig:
    """The draft head that is the last layer of a decoder, which counts the module as a layer more.

    Args:
        model: the target with that layer.
        names: of the checkpoint's tensors: which of those that both share the module has copies of.
    """
    layer = model.num_layers - 1
    fed = Fed(
        size=model.hidden_size,
        taps=(layer,),
        vocab_size=model.vocab_size,
        own_embedding=_embedding(layer) in names,
        own_head=_head(layer) in names,
        layer=layer,
    )
    return replace(model.only(layer), draft_layers=0, tie_embeddings=model.tie_embeddings and not fed.own_head, fed=fed)


def module_rules(config: DecoderConfig, attention: LayerRules, experts: LayerRules) -> list[WeightRule]:
    """Where each tensor of a module goes.

    Args:
        config: from `module_config`.
        attention, experts: of its layer, as in `decoder_rules`.
    """
    fed, embed = config.fed, config.hidden_size
    assert fed is not None
    assert fed.layer is not None
    path, prefix = ("layers", "0"), module_prefix(fed.layer)
    table = (config.vocab_size, embed)
    embedding = _embedding(fed.layer) if fed.own_embedding else "model.embed_tokens.weight"
    head = _head(fed.layer) if fed.own_head else "lm_head.weight"
    logits = [] if config.tie_embeddings else [WeightRule(("head", "kernel"), (Source(head, table),), Packing.TRANSPOSED)]
    norms = [f"{prefix}{name}.weight" for name in ("input_layernorm", "post_attention_layernorm", "shared_head.norm")]
    block = prefix.removesuffix(".")
    mlp = experts(config, path, block) if config.experts is not None else mlp_rules(config, (*path, "mlp"), f"{block}.mlp")
    return [
        whole(("embedding", "table"), embedding, table),
        WeightRule(("norms", "scale"), tuple(Source(name, (embed,)) for name in norms), Packing.WHOLE, len(norms)),
        *logits,
        WeightRule(("entry", "kernel"), (Source(f"{prefix}eh_proj.weight", (embed, 2 * embed)),), Packing.TRANSPOSED),
        whole(("entry", "embed_norm", "scale"), f"{prefix}enorm.weight", (embed,)),
        whole(("entry", "hidden_norm", "scale"), f"{prefix}hnorm.weight", (embed,)),
        *attention(config, path, block),
        *mlp,
    ]


def _embedding(layer: int) -> str:
    return f"{module_prefix(layer)}embed_tokens.weight"


def _head(layer: int) -> str:
    return f"{module_prefix(layer)}shared_head.head.weight"
