"""BERT (Devlin et al. 2019): bge, e5, gte, MiniLM, and their cross-encoders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.models.config import DecoderConfig
from jaxserve.models.encoder.rules import bert_rules
from jaxserve.models.encoder_config import EncoderConfig
from jaxserve.models.families.common import common_config
from jaxserve.models.fields import HfFields
from jaxserve.models.rules import WeightRule

ARCHITECTURE = "BertModel"
MODEL_TYPE = "bert"

_ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The encoder that a BERT config.json describes."""
    return bert_config(hf, model_type=MODEL_TYPE, first_position=0)


def bert_config(hf: Mapping[str, Any], *, model_type: str, first_position: int) -> DecoderConfig:
    """Of BERT or one of its like, which keeps the first rows of its table of positions for padding."""
    fields = HfFields(hf)
    activation = hf.get("hidden_act", "gelu")
    if activation not in _ACTIVATIONS:
        raise fields.unsupported("hidden_act", f"supported are {', '.join(_ACTIVATIONS)}")
    if hf.get("position_embedding_type", "absolute") != "absolute":
        raise fields.unsupported("position_embedding_type", "supported is absolute")
    if fields.flag("is_decoder", False):
        raise fields.unsupported("is_decoder", "supported are encoders")
    positions, layers = fields.integer("max_position_embeddings", 512), fields.integer("num_hidden_layers")
    encoder = EncoderConfig(
        positions=positions,
        first_position=first_position,
        token_types=fields.integer("type_vocab_size", 2),
        norms_first=False,
        norm_bias=True,
        head="tanh",
        head_bias=True,
    )
    return common_config(
        {**hf, "rms_norm_eps": fields.number("layer_norm_eps", 1e-12), "max_position_embeddings": positions - first_position},
        model_type=model_type,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        tie_embeddings=True,
        windows=(None,) * layers,
        max_position_embeddings=positions,
        reads=frozenset({"hidden_act"}),
        ropes=(None,) * layers,
        activation=_ACTIVATIONS[activation],
        gated=False,
        encoder=encoder,
        bidirectional=True,
    )


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    if config.architecture == ARCHITECTURE:
        return bert_rules(config, "", "", "")
    return bert_rules(config, "bert.", "bert.pooler.dense", "classifier")
