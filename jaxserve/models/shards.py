"""How a decoder is divided over tensor-parallel devices ("shards").

Each device holds whole query heads, a slice of the MLP's columns and a slice of the vocabulary. Of routed experts it holds a
slice of each; or the devices form groups, which share them, and it holds a larger slice of each of its group's. What need not
divide:

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
    experts = config.experts
    dimensions = [
        Dimension("num_attention_heads", config.num_heads),
        Dimension("num_key_value_heads", config.num_kv_heads, replicates=True),
    ]
    if experts is None or not all(experts.layers):
        dimensions.append(Dimension("intermediate_size", config.ffn_size))
    if experts is not None:
        # Also where groups of devices share them: so parameters look the same whatever the groups.
        dimensions.append(Dimension("moe_intermediate_size", experts.ffn_size))
    if experts is not None and experts.shared_ffn_size:
        dimensions.append(Dimension("shared_expert_intermediate_size", experts.shared_ffn_size))
    try:
        require_division(dimensions, shards)
    except ValueError as error:
        raise ConfigError(f"tensor_parallel_size {error}", param="tensor_parallel_size") from error


def require_expert_groups(config: DecoderConfig, shards: int, groups: int) -> None:
    """Check that so many groups of the devices can share the experts.

    Raises:
        ConfigError: there are no experts, or one group would have more of them or more devices than another.
    """
    if groups == 1:
        return
    param = "expert_parallel_size"
    if config.experts is None:
        raise ConfigError(f"{param} {groups}: {config.architecture} has no experts; 1 is what fits it", param=param)
    dimensions = (Dimension("num_experts", config.experts.count), Dimension("tensor_parallel_size", shards))
    try:
        require_division(dimensions, groups)
    except ValueError as error:
        raise ConfigError(f"{param} {error}", param=param) from error
