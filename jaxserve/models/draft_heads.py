"""Checkpoints of draft heads: EAGLE-3 (Li et al. 2025), as its authors publish them and as `speculators` does."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.models.config import DecoderConfig, Fed
from jaxserve.models.families.common import common_config, uniform_windows
from jaxserve.models.fields import HfFields
from jaxserve.models.rules import Packing, Source, WeightRule, attention_rules, mlp_rules, whole

AUTHORS, SPECULATORS = "LlamaForCausalLMEagle3", "Eagle3Speculator"
LAYER: Mapping[str, str] = MappingProxyType({AUTHORS: "midlayer", SPECULATORS: "layers.0"})
"""What tensors of the layer begin with, by architecture."""
GUESSABLE = ("d2t", "t2d")
"""Tensors that say which of the target's tokens the head guesses: no weights."""
EMBEDDING = "embed_tokens.weight"
_OTHERS = ("norm_before_fc", "fc_norm", "norm_output", "parallel_drafting")  # of later heads, which compute otherwise


class HeadTarget(Protocol):
    """As much as is asked of a head's target."""

    @property
    def hidden_size(self) -> int: ...

    @property
    def num_layers(self) -> int: ...


def is_draft_head(hf: Mapping[str, Any]) -> bool:
    """Whether a config.json is of a head, not of a model."""
    names = hf.get("architectures") or []
    return any("eagle" in str(name).lower() for name in names) or hf.get("speculators_model_type") is not None


def head_config(hf: Mapping[str, Any], target: HeadTarget, names: Collection[str]) -> DecoderConfig:
    """The decoder that a head's config.json describes.

    Args:
        hf: the parsed config.json, of either layout.
        target: what the head guesses for.
        names: of the checkpoint's tensors, which tell the layouts apart.

    Raises UnsupportedModelError for another kind of head, CheckpointError for one that does not fit the target.
    """
    inner = hf.get("transformer_layer_config")
    own = {**hf, **(inner if isinstance(inner, Mapping) else {})}
    fields = HfFields(own)
    kind = hf.get("speculators_model_type", "eagle3")
    if kind != "eagle3" or (inner is None and AUTHORS not in (hf.get("architectures") or [])):
        raise UnsupportedModelError(
            f"speculative_config: model: draft heads of kind {kind!r} and architecture {hf.get('architectures')} are not "
            f"supported; EAGLE-3's are ({AUTHORS}, or speculators' eagle3)",
            param="speculative_config",
        )
    for name in _OTHERS:
        if own.get(name):
            raise fields.unsupported(name, "EAGLE-3 heads have none")
    eagle = own.get("eagle_config") or {}
    if not eagle.get("use_aux_hidden_state", True):
        raise fields.unsupported("eagle_config", "a head goes on from hidden states of several layers")
    taps = own.get("eagle_aux_hidden_state_layer_ids") or eagle.get("eagle_aux_hidden_state_layer_ids")
    width = fields.integer("target_hidden_size", target.hidden_size)
    if width != target.hidden_size:
        raise CheckpointError(
            f"speculative_config: model: the head goes on from {width} numbers a token, and the target has {target.hidden_size}",
            param="speculative_config",
        )
    layout = AUTHORS if any(name.startswith(f"{LAYER[AUTHORS]}.") for name in names) else SPECULATORS
    model_type = own.get("model_type", "llama")
    config = common_config(
        {**own, "architectures": [layout], "num_hidden_layers": 1, "model_type": model_type},
        model_type=model_type,
        qkv_bias=fields.flag("attention_bias", False),
        output_bias=False,
        windows=uniform_windows(fields, None),
        max_position_embeddings=2048,
    )
    taps = _taps(taps, target.num_layers)
    vocabulary = fields.integer("draft_vocab_size", config.vocab_size)
    fed = Fed(
        size=width * len(taps),
        taps=taps,
        vocab_size=vocabulary,
        norm_first=bool(own.get("norm_before_residual", False)),
        own_embedding=EMBEDDING in names,
    )
    return replace(config, tie_embeddings=False, fed=fed)


def head_rules(config: DecoderConfig) -> list[WeightRule]:
    """Where each tensor of a head goes."""
    fed, layer, embed = config.fed, LAYER[config.architecture], config.hidden_size
    assert fed is not None, "a draft head"
    path = ("layers", "0")
    norms = tuple(
        Source(f"{name}.weight", (embed,)) for name in (f"{layer}.hidden_norm", f"{layer}.post_attention_layernorm", "norm")
    )
    attention = attention_rules(config, path, layer)
    qkv, *others = attention
    wide = tuple(replace(source, shape=(source.shape[0], config.attention_inputs)) for source in qkv.sources)
    rules = [
        WeightRule(("norms", "scale"), norms, Packing.WHOLE, len(norms)),
        WeightRule(("head", "kernel"), (Source("lm_head.weight", (fed.vocab_size, embed)),), Packing.TRANSPOSED),
        WeightRule(("entry", "kernel"), (Source("fc.weight", (embed, fed.size)),), Packing.TRANSPOSED),
        whole(("entry", "embed_norm", "scale"), f"{layer}.input_layernorm.weight", (embed,)),
        replace(qkv, sources=wide),
        *others,
        *mlp_rules(config, (*path, "mlp"), f"{layer}.mlp"),
    ]
    if fed.own_embedding:
        rules.append(whole(("embedding", "table"), EMBEDDING, (config.vocab_size, embed)))
    return rules


def _taps(given: Any, layers: int) -> tuple[int, ...]:
    """The target's layers whose inputs a head sees; where its file does not say, those of its authors."""
    taps = (2, layers // 2, layers - 3) if given is None else tuple(given)
    if not taps or not all(isinstance(tap, int) and 0 <= tap < layers for tap in taps) or len(set(taps)) != len(taps):
        raise CheckpointError(
            f"speculative_config: model: the head sees the inputs of layers {list(taps)}, and the target has {layers} layers",
            param="speculative_config",
        )
    return taps
