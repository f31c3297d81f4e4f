"""XLM-RoBERTa (Conneau et al. 2020): BERT with other positions, and a head of its own; multilingual e5, bge-m3, bge rerankers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.models.config import DecoderConfig
from jaxserve.models.encoder.bert import bert_config
from jaxserve.models.encoder.rules import bert_rules
from jaxserve.models.fields import HfFields
from jaxserve.models.rules import WeightRule

ARCHITECTURE = "XLMRobertaModel"
MODEL_TYPE = "xlm-roberta"


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """The encoder that an XLM-RoBERTa config.json describes; positions begin behind the one of padding."""
    return bert_config(hf, model_type=MODEL_TYPE, first_position=HfFields(hf).count("pad_token_id", 1) + 1)


def weight_rules(config: DecoderConfig) -> list[WeightRule]:
    if config.architecture == ARCHITECTURE:
        return bert_rules(config, "", "", "")
    return bert_rules(config, "roberta.", "classifier.dense", "classifier.out_proj")
