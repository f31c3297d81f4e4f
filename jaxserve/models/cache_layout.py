"""What the KV cache holds of a token, whoever keeps it."""

from __future__ import annotations

from typing import NamedTuple

from jaxserve.models.config import DecoderConfig
from jaxserve.models.shards import cache_kv_heads


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

    def shape(self, layers: int, pages: int, page_size: int) -> tuple[int, ...]:
        """[L, P, 2, K, S, D] or [L, P, 1, K, S, D], the shape of a paged cache."""
        return layers, pages, self.halves, self.heads, page_size, self.dim


def cache_layout(config: DecoderConfig, shards: int) -> CacheLayout:
    """What a decoder caches on `shards` tensor-parallel devices."""
    return CacheLayout(2 if config.latent is None else 1, cache_kv_heads(config, shards), config.head_dim)
