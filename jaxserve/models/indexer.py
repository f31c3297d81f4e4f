"""DeepSeek Sparse Attention's lightning indexer (DeepSeek-AI 2025, https://arxiv.org/abs/2512.02556, section 2.1).

Beside attention a layer has small heads of queries, and one key a token: by their scores it chooses which tokens attention sees.
Which these are is the caller's `attend` to find out: it knows the tokens that came before.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.latent import Indexer
from jaxserve.models.norm import layer_norm
from jaxserve.models.parameter import COLUMNS, ROUTER, Parameter, Projected, declare, project_columns
from jaxserve.models.rope import rotate_pairs
from pallas_kernels.matmul import matmul
from pallas_kernels.rotate_and_write import Rotation, rotate

NORM_EPS = 1e-6
"""Of the norm of keys, whatever the config says."""


class Index(NamedTuple):
    """What an Attend chooses tokens by; see `pallas_kernels.lightning_index`.

    Attributes:
        layer: that it was made in; those that share what it chooses are given the same again.
        q, weights: of the step's tokens, [T, I, N] and float32[T, I].
        keys: of the step's tokens, [T, N]; a layer's cached vectors have theirs behind the key that all its heads share.
        top_k: tokens that one attends to at most.
    """

    layer: int
    q: jax.Array
    weights: jax.Array
    keys: jax.Array
    top_k: int


class LightningIndexer(nnx.Module):
    """Makes the Index of a layer; every device has all of it.

    `query` [query rank, 1, I * N] makes the queries, of their latent, `key` [E, 1, N] the key, and `weights` [E, I] how much each
    head counts. Keys are normalised as LayerNorm does (Ba et al. 2016), with `scale` and `bias` [N].
    """

    def __init__(self, indexer: Indexer, layer: int, embed: int, query_rank: int, dtype: jnp.dtype) -> None:
        self.indexer, self.layer = indexer, layer
        heads, dim = indexer.heads, indexer.dim
        self.query = declare((query_rank, 1, heads * dim), ("embed", None, None), dtype, COLUMNS)
        self.key = declare((embed, 1, dim), ("embed", None, None), dtype, COLUMNS)
        self.weights = declare((embed, heads), ("embed", None), dtype, ROUTER)
        self.scale, self.bias = (declare((dim,), ("head_dim",), dtype) for _ in range(2))

    @property
    def first(self) -> tuple[Parameter, ...]:
        """The matrices that rows are multiplied by."""
        return self.key, self.weights

    def __call__(self, x: Projected, latents: Projected, rope: Rotation | None) -> Index:
        """x[T, E] of normalised activations and the queries' latents[T, query rank] to queries, weights and keys."""
        heads, dim = self.indexer.heads, self.indexer.dim
        q = project_columns(latents, self.query, None).reshape(-1, heads, dim)
        keys = project_columns(x, self.key, None)
        keys = layer_norm(keys[:, 0], self.scale[...], NORM_EPS, self.bias[...])
        if rope is not None:
            turned = rotate_pairs if self.indexer.interleaved else rotate
            q, keys = turned(q, rope), turned(keys[:, None], rope)[:, 0]
        return Index(self.layer, q, matmul(x, ROUTER.matrix(self.weights)), keys, self.indexer.top_k)
