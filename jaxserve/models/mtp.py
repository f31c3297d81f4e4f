"""Modules for multi-token prediction (DeepSeek-AI 2024, 2.2), which checkpoints have behind the last layer or beside all."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from jaxserve.models.config import DecoderConfig, Fed, ModuleNames
from jaxserve.models.rules import LayerRules, Packing, Source, WeightRule, attention_rules, mlp_rules, whole

BESIDE = "mtp."  # with which the names of tensors of modules beside the layers begin


def names_behind(layer: int) -> ModuleNames:
    """DeepSeek-V3's: the module is one layer more."""
    block = f"model.layers.{layer}"
    return ModuleNames(
        begin=f"{block}.",
        layer=block,
        projection=f"{block}.eh_proj",
        embed_norm=f"{block}.enorm",
        hidden_norm=f"{block}.hnorm",
        final_norm=f"{block}.shared_head.norm",
        embedding=f"{block}.embed_tokens.weight",
        head=f"{block}.shared_head.head.weight",
    )


def names_beside(layer: int) -> ModuleNames:
    """Qwen3-Next's and its successors', whatever the number of the target's layers."""
    del layer
    return ModuleNames(
        begin=BESIDE,
        layer=f"{BESIDE}layers.0",
        projection=f"{BESIDE}fc",
        embed_norm=f"{BESIDE}pre_fc_norm_embedding",
        hidden_norm=f"{BESIDE}pre_fc_norm_hidden",
        final_norm=f"{BESIDE}norm",
    )


def module_config(model: DecoderConfig, module: ModuleNames, names: Collection[str], *, normed_on: bool) -> DecoderConfig:
    """The draft head that is the last layer of a decoder, which counts the module as a layer more.

    Args:
        model: the target with that layer.
        module: what its tensors are called.
        names: of the checkpoint's tensors: which of those that both share the module has copies of.
        normed_on: as in Fed.
    """
    layer = model.num_layers - 1
    fed = Fed(
        size=model.hidden_size,
        taps=(layer,),
        vocab_size=model.vocab_size,
        own_embedding=module.embedding in names,
        own_head=module.head in names,
        module=module,
        normed_on=normed_on,
    )
    return replace(model.only(layer), draft_layers=0, tie_embeddings=model.tie_embeddings and not fed.own_head, fed=fed)


def module_rules(
    config: DecoderConfig, experts: LayerRules | None = None, attention: LayerRules = attention_rules
) -> list[WeightRule]:
    """Where each tensor of a module goes.

    Args:
        config: from `module_config`.
        experts: of its layer, if that has some, as in `decoder_rules`.
        attention: likewise.
    """
    fed, embed = config.fed, config.hidden_size
    assert fed is not None
    assert fed.module is not None
    module, path, table = fed.module, ("layers", "0"), (config.vocab_size, embed)
    embedding = module.embedding if fed.own_embedding and module.embedding else "model.embed_tokens.weight"
    head = module.head if fed.own_head and module.head else "lm_head.weight"
    logits = [] if config.tie_embeddings else [WeightRule(("head", "kernel"), (Source(head, table),), Packing.TRANSPOSED)]
    norms = [f"{module.layer}.input_layernorm", f"{module.layer}.post_attention_layernorm", module.final_norm]
    sources = tuple(Source(f"{name}.weight", (embed,)) for name in norms)
    mlp = (*path, "mlp")
    return [
        whole(("embedding", "table"), embedding, table),
        WeightRule(("norms", "scale"), sources, Packing.WHOLE, len(norms)),
        *logits,
        WeightRule(("entry", "kernel"), (Source(f"{module.projection}.weight", (embed, 2 * embed)),), Packing.TRANSPOSED),
        whole(("entry", "embed_norm", "scale"), f"{module.embed_norm}.weight", (embed,)),
        whole(("entry", "hidden_norm", "scale"), f"{module.hidden_norm}.weight", (embed,)),
        *attention(config, path, module.layer),
        *(experts(config, path, module.layer) if config.experts and experts else mlp_rules(config, mlp, f"{module.layer}.mlp")),
    ]
