"""What a model is served for: text, what is made of its hidden states, or both."""

from __future__ import annotations

from dataclasses import dataclass

from jaxserve.config.fields import ModelConfig
from jaxserve.executor.pooling import POOLED_READER, TOKEN_VECTORS_READER
from jaxserve.executor.readers import LOGPROBS_READER, Reader
from jaxserve.models.config import DecoderConfig
from jaxserve.pooling.pooler import EMBEDS, Pooler


@dataclass(frozen=True, slots=True)
class Served:
    """What requests may ask for.

    Attributes:
        generates: text.
        pooler: what is made of hidden states; None for nothing.
    """

    generates: bool
    pooler: Pooler | None


def served_of(config: ModelConfig, decoder: DecoderConfig) -> Served:
    """What the configuration asks for. Raises ConfigError for what the model cannot do."""
    pools = config.runner == "pooling"
    embeds = config.convert == "embed" or (pools and config.convert == "auto")
    return Served(not pools, Pooler(tasks=EMBEDS, hidden_size=decoder.hidden_size) if embeds else None)


def readers_of(pooler: Pooler | None) -> tuple[Reader, ...]:
    """The readers of an engine with this pooler: no more programs than it needs."""
    if pooler is None:
        return (LOGPROBS_READER,)
    return LOGPROBS_READER, POOLED_READER, TOKEN_VECTORS_READER
