"""How a decoder is divided over tensor-parallel devices ("shards"), and what they cache of a token.

Each device holds whole query heads, a slice of the MLP's columns and a slice of the vocabulary. Of routed experts it holds a
slice of each; or the devices form groups, which share them, and it holds a larger slice of each of its group's. What need not
divide:

- KV heads may be fewer than the devices if they divide them: each head's weights and cache are then held by several devices,
  so that a device's memory is that of one KV head.
- The vocabulary is padded with zeros to a multiple of the devices; padded tokens have a logit of -inf.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxserve.errors import ConfigError
from jaxserve.models.config import DecoderConfig
from pallas_kernels import hopper
from pallas_kernels.grouped_matmul.mosaic_gpu_support import WIDTH
from pallas_kernels.registry import Target
from sharding import Dimension, require_division


def held_kv_heads(kv_heads: int, shards: int) -> int:
    """KV heads that a layer's keys, values and their cache have over all devices, the repeated ones included."""
    return max(kv_heads, shards)


def padded_vocab(vocab_size: int, shards: int) -> int:
    """The smallest multiple of `shards` that holds the vocabulary."""
    return -(-vocab_size // shards) * shards


def require_shards(config: DecoderConfig, shards: int) -> None:
    """Check that the decoder can be divided over this many devices.

    Raises ConfigError: names what does not divide and the numbers of devices that would.
    """
    experts = config.experts
    dimensions = [
        Dimension("num_attention_heads", config.num_heads),
        *(Dimension("num_key_value_heads", count, replicates=True) for count in _kv_heads(config)),
    ]
    if config.recurrent is not None:
        dimensions += [Dimension(each.name, each.size, replicates=each.replicates) for each in config.recurrent.divided]
    if experts is None or not all(experts.layers):
        dimensions.append(Dimension("intermediate_size", config.ffn_size))
    if experts is not None:
        # Also where groups of devices share them: so parameters look the same whatever the groups.
        dimensions.append(Dimension("moe_intermediate_size", experts.ffn_size))
    if experts is not None and experts.shared_ffn_size:
        dimensions.append(Dimension("shared_expert_intermediate_size", experts.shared_ffn_size))
    if config.layer_input:
        dimensions.append(Dimension("hidden_size_per_layer_input", config.layer_input))
    try:
        require_division(dimensions, shards)
    except ValueError as error:
        raise ConfigError(f"tensor_parallel_size {error}", param="tensor_parallel_size") from error
    _require_views(config, shards)


def require_scales(config: DecoderConfig) -> None:
    """Check that a quantized cache can have scales of all layers' keys and values: of layers that differ, it has no views.

    Raises ConfigError.
    """
    kinds = dict.fromkeys(config.heads_of(layer) for layer in range(config.num_layers))
    if len({(heads.kv_heads, heads.head_dim) for heads in kinds}) > 1:
        heads = " and ".join(f"{heads.kv_heads} of {heads.head_dim}" for heads in kinds)
        raise ConfigError(
            f"kv_cache_dtype: layers of {config.architecture} have different KV heads ({heads}), whose cache cannot be "
            "quantized; 'auto' is what fits it",
            param="kv_cache_dtype",
        )


def _kv_heads(config: DecoderConfig) -> list[int]:
    """KV heads of its layers, each number once."""
    return list(dict.fromkeys(config.heads_of(layer).kv_heads for layer in range(config.num_layers)))


def _require_views(config: DecoderConfig, shards: int) -> None:
    """Check that what the layers with the largest keys and values cache is a whole number of times what any other does."""
    most = cache_layout(config, shards)
    for other in _layouts(config, shards):
        if most.numbers % other.numbers:
            raise ConfigError(
                f"tensor_parallel_size {shards}: layers of {config.architecture} have {most.heads} KV heads of {most.dim} and "
                f"{other.heads} of {other.dim}, repeated ones included; the more numbers must be a multiple of the fewer",
                param="tensor_parallel_size",
            )


def require_expert_groups(config: DecoderConfig, shards: int, groups: int) -> None:
    """Check that so many groups of the devices can share the experts.

    Raises ConfigError: there are no experts, or one group would have more of them or more devices than another.
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


def expert_groups(config: DecoderConfig, shards: int, target: Target) -> int:
    """How many groups of the devices share the experts unless somebody says: 1 if every device should have a part of each.

    On Hopper it is the fewest for which a device's part of an expert has a width that the Mosaic grouped matmul takes, if any
    number will do. Groups change no sizes: a device has as many bytes of experts either way.
    """
    experts = config.experts
    if experts is None or hopper.runs_on(target) is not None:
        return 1
    fitting = (
        groups
        for groups in range(1, shards + 1)
        if shards % groups == 0 and experts.count % groups == 0 and experts.ffn_size * groups % (shards * WIDTH) == 0
    )
    return next(fitting, 1)


class CacheLayout(NamedTuple):
    """The vectors of one token in one layer: [halves, heads, dim].

    Attributes:
        halves: 2 for key and value, 1 where the value is a part of the key (`Latent`).
        heads: K over all devices, the repeated ones included.
        dim: D.
    """

    halves: int
    heads: int
    dim: int

    @property
    def numbers(self) -> int:
        """Of a token in one layer, over all devices."""
        return self.halves * self.heads * self.dim

    def shape(self, layers: int, pages: int, page_size: int) -> tuple[int, ...]:
        """[L, P, 2, K, S, D] or [L, P, 1, K, S, D], the shape of a paged cache."""
        return layers, pages, self.halves, self.heads, page_size, self.dim


def cache_layout(config: DecoderConfig, shards: int) -> CacheLayout:
    """What a decoder caches on `shards` tensor-parallel devices; of layers that differ, what those do that cache most.

    The others have the first numbers of as much, as heads of their own.
    """
    return max(_layouts(config, shards), key=lambda layout: layout.numbers)


def _layouts(config: DecoderConfig, shards: int) -> list[CacheLayout]:
    """What its layers cache, each kind once."""
    halves = 2 if config.latent is None else 1
    kinds = {config.heads_of(layer): None for layer in range(config.num_layers)}
    return [CacheLayout(halves, held_kv_heads(heads.kv_heads, shards), heads.head_dim) for heads in kinds]
