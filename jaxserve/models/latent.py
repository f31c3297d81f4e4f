"""What latent attention is: the numbers that its projections and its cache depend on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """What chooses the cached tokens that a token attends to (DeepSeek Sparse Attention, DeepSeek-AI 2025).

    Attributes:
        heads, dim: I, N: heads of queries, and numbers of each, and of the one key.
        top_k: tokens that are chosen at most.
        layers: one entry a layer: whether it chooses. The others attend to what the last one that did has chosen.
        interleaved: of queries and keys neighbours are rotated, not halves.
    """

    heads: int
    dim: int
    top_k: int
    layers: tuple[bool, ...]
    interleaved: bool = False

    def parameters(self, embed: int, query_rank: int) -> int:
        """Weights of one layer's projections; norms apart."""
        return query_rank * self.heads * self.dim + embed * (self.dim + self.heads)

    @property
    def norms(self) -> int:
        """Weights of one layer's norm of keys, which has a bias."""
        return 2 * self.dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Multi-head latent attention (DeepSeek-AI 2024): keys and values of all heads are projections of one short vector a token.

    Attributes:
        query_rank: of the queries' own latent; None if they are projected from the hidden state.
        kv_rank: of the latent that is cached.
        nope_dim, rope_dim: dimensions of a query or key head without positions, and with; all heads share the latter's key.
        value_dim: of a value head.
        indexer: what chooses the tokens that one attends to, from the queries' latent; None for all that came before it.
    """

    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    indexer: Indexer | None = None

    @property
    def key_dim(self) -> int:
        """Numbers of the key that all heads share: the latent and what is rotated."""
        return self.kv_rank + self.rope_dim

    @property
    def cached(self) -> int:
        """Numbers of a token in the cache: that key, and the indexer's behind it."""
        return self.key_dim + (0 if self.indexer is None else self.indexer.dim)

    def parameters(self, embed: int, heads: int) -> int:
        """Weights of one layer's projections; norms and the indexer apart."""
        query = heads * (self.nope_dim + self.rope_dim)
        queries = embed * query if self.query_rank is None else self.query_rank * (embed + query)
        down, out = embed * self.key_dim, heads * self.value_dim * embed
        return queries + down + self.kv_rank * heads * (self.nope_dim + self.value_dim) + out

    @property
    def norms(self) -> int:
        """Weights of one layer's norms of latents."""
        return self.kv_rank + (self.query_rank or 0)

    def indexer_of(self, layer: int) -> Indexer | None:
        """What chooses in a layer; None if nothing does."""
        return self.indexer if self.indexer is not None and self.indexer.layers[layer] else None
