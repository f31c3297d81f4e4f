"""What a model is served for: text, what is made of its hidden states, or both. Its files say, and the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxserve.config.fields import ModelConfig
from jaxserve.errors import CheckpointError, ConfigError, UnsupportedModelError
from jaxserve.executor.pooling import (
    HEAD_READER,
    POOLED_READER,
    TOKEN_VECTORS_READER,
    WHOLE_HEAD_READER,
    WHOLE_READER,
    token_head_reader,
)
from jaxserve.executor.readers import LOGPROBS_READER, Reader
from jaxserve.models.config import DecoderConfig
from jaxserve.models.registry import CAUSAL_LM, architecture_of, labels_of
from jaxserve.models.sentence_transformers import SentenceTransformer
from jaxserve.pooling.params import PoolingType
from jaxserve.pooling.pooler import CLASSIFIES, EMBEDS, SCORES, Activation, Pooler
from jaxserve.tokenizer.base import Tokenizer

_PROBLEM, _SEVERAL = "problem_type", "multi_label_classification"
_HEAD_TOKENS = "classifier_from_token"
_CROSS_ENCODER, _ACTIVATION_FN = "sentence_transformers", "activation_fn"
_OLD_ACTIVATION_FN = "sbert_ce_default_activation_function"
_ACTIVATIONS: Mapping[str, Activation] = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"}


@dataclass(frozen=True, slots=True)
class Served:
    """What requests may ask for.

    Attributes:
        generates: text.
        pooler: what is made of hidden states; None for nothing.
        readers: what reads them: no more programs than that needs.
    """

    generates: bool
    pooler: Pooler | None = None
    readers: tuple[Reader, ...] = (LOGPROBS_READER,)


def served_of(
    config: ModelConfig,
    hf: Mapping[str, Any],
    sentences: SentenceTransformer | None,
    decoder: DecoderConfig,
    tokenizer: Tokenizer | None,
) -> Served:
    """What a model's files and the configuration ask for.

    Raises ConfigError for what the model cannot do, CheckpointError or UnsupportedModelError for its files.
    """
    has_logits = architecture_of(hf).endswith(CAUSAL_LM) and decoder.has_logits
    pools = config.runner == "pooling" or (config.runner == "auto" and (sentences is not None or not has_logits))
    if not pools and not has_logits:
        raise ConfigError(f"runner generate: {architecture_of(hf)} has no head for logits: it pools", param="runner")
    if config.convert == "none" or (not pools and config.convert == "auto"):
        return Served(generates=not pools)
    has_head = decoder.labels > 0 or bool(hf.get(_HEAD_TOKENS))
    if config.convert == "classify" or (config.convert == "auto" and has_head):
        if not has_head:
            raise ConfigError(
                f"convert classify: {architecture_of(hf)} has no head that classifies, and config.json no {_HEAD_TOKENS}",
                param="convert",
            )
        return _classifier(not pools, hf, decoder, tokenizer)
    reader = WHOLE_READER if decoder.bidirectional else POOLED_READER
    return Served(not pools, _embedder(hf, decoder, sentences), (*_logprobs(decoder), reader, TOKEN_VECTORS_READER))


def with_separator(decoder: DecoderConfig, tokenizer: Tokenizer | None) -> DecoderConfig:
    """An encoder that tells two texts apart with the token that comes behind the first."""
    encoder = decoder.encoder
    if encoder is None or encoder.token_types < 2 or tokenizer is None:
        return decoder
    around_nothing = tokenizer.encode("")
    if not around_nothing:
        return decoder  # nothing is between two texts either
    return replace(decoder, encoder=replace(encoder, separator=around_nothing[-1]))


def _embedder(hf: Mapping[str, Any], decoder: DecoderConfig, sentences: SentenceTransformer | None) -> Pooler:
    found = sentences or SentenceTransformer(pooling=_pooling(decoder), normalizes=True)
    return Pooler(
        tasks=EMBEDS,
        hidden_size=decoder.embedding_size,
        pooling=found.pooling,
        normalizes=found.normalizes,
        matryoshka=_matryoshka(hf),
        prompts=found.prompts,
        default_prompt=found.default_prompt,
        lowercases=found.lowercases,
        whole=decoder.bidirectional,
    )


def _pooling(decoder: DecoderConfig, named: str | None = None) -> PoolingType:
    """Where nothing says whose hidden states count: those of the last token, of an encoder those of its first one."""
    if named == "mean":
        return "mean"
    return "last" if decoder.encoder is None else "first"


def _logprobs(decoder: DecoderConfig) -> tuple[Reader, ...]:
    return (LOGPROBS_READER,) if decoder.has_logits else ()


def _matryoshka(hf: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Lengths that embeddings may be cut to, as vLLM reads them. Raises CheckpointError."""
    lengths = hf.get("matryoshka_dimensions")
    if lengths is None:
        return () if hf.get("is_matryoshka") else None
    if not isinstance(lengths, list) or not all(isinstance(one, int) and one > 0 for one in lengths):
        raise CheckpointError("config.json: matryoshka_dimensions must be a list of positive integers", param="model")
    return tuple(lengths)


def _classifier(generates: bool, hf: Mapping[str, Any], decoder: DecoderConfig, tokenizer: Tokenizer | None) -> Served:
    words = hf.get(_HEAD_TOKENS)
    if words:
        tokens = _head_tokens(words, tokenizer)
        labels: tuple[str, ...] = (str(words[-1]),) if len(tokens) == 2 else tuple(map(str, words))
        reader = token_head_reader(tokens)
    else:
        labels, reader = labels_of(hf), WHOLE_HEAD_READER if decoder.bidirectional else HEAD_READER
    pooler = Pooler(
        tasks=SCORES if len(labels) == 1 else CLASSIFIES,
        hidden_size=decoder.hidden_size,
        pooling=_pooling(decoder, hf.get("classifier_pooling")),
        labels=labels,
        activation=_activation(hf, len(labels)),
        whole=decoder.bidirectional,
    )
    return Served(generates, pooler, (*_logprobs(decoder), reader))


def _activation(hf: Mapping[str, Any], labels: int) -> Activation:
    """As config.json says of a cross-encoder, or else as transformers has it. Raises UnsupportedModelError."""
    newer = hf.get(_CROSS_ENCODER)
    field, named = f"{_CROSS_ENCODER}.{_ACTIVATION_FN}", newer.get(_ACTIVATION_FN) if isinstance(newer, dict) else None
    if named is None:
        field, named = _OLD_ACTIVATION_FN, hf.get(_OLD_ACTIVATION_FN)
    if named is None:
        return "sigmoid" if labels == 1 or hf.get(_PROBLEM) == _SEVERAL else "softmax"
    kind = str(named).rpartition(".")[2]
    if kind not in _ACTIVATIONS:
        supported = ", ".join(_ACTIVATIONS)
        raise UnsupportedModelError(f"config.json: {field} {named!r} is not supported; supported are {supported}", param="model")
    return _ACTIVATIONS[kind]


def _head_tokens(words: Any, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    """The token that each word is. Raises CheckpointError."""
    if not isinstance(words, list) or len(words) < 2 or not all(isinstance(word, str) for word in words):
        raise CheckpointError(f"config.json: {_HEAD_TOKENS} must be a list of at least two tokens", param="model")
    if tokenizer is None:
        raise CheckpointError(f"config.json: {_HEAD_TOKENS} needs a tokenizer, and there is none", param="model")
    tokens = []
    for word in words:
        ids = tokenizer.encode(word, add_special_tokens=False)
        if len(ids) != 1:
            raise CheckpointError(f"config.json: {_HEAD_TOKENS}: {word!r} is {len(ids)} tokens, not one", param="model")
        tokens.append(ids[0])
    return tuple(tokens)
