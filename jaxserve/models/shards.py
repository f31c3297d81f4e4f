"""How a decoder is divided over tensor-parallel devices ("shards").

Each device holds whole query heads, a slice of the MLP's columns and a slice of the vocabulary. What need not divide:

- KV heads may be fewer than the devices if they divide them: each head's weights and cache are then held by several devices,
  so that a device's memory is that of one KV head.
- The vocabulary is padded with zeros to a multiple of the devices; padded tokens have a logit of -inf.
"""

from __future__ import annotations

from jaxserve.errors import ConfigError
from jaxserve.models.config import DecoderConfig
from sharding import Dimension, require_division


def cache_kv_heads(config: DecoderConfig, shards: int) -> int:
    """KV heads that keys, values and their cache have over all devices, the repeated ones included."""
    return max(config.num_kv_heads, shards)


def padded_vocab(vocab_size: int, shards: int) -> int:
    """The smallest multiple of `shards` that holds the vocabulary."""
    return -(-vocab_size // shards) * shards


def require_shards(config: DecoderConfig, shards: int) -> None:
    """Check that the decoder can be divided over this many devices.

    Raises:
        ConfigError: names what does not divide and the numbers of devices that would.
    """
    dimensions = (
        Dimension("num_attention_heads", config.num_heads),
        Dimension("num_key_value_heads", config.num_kv_heads, replicates=True),
        Dimension("intermediate_size", config.ffn_size),
    )
    try:
        require_division(dimensions, shards)
    except ValueError as error:
        raise ConfigError(f"tensor_parallel_size {error}", param="tensor_parallel_size") from error
