"""Log-probabilities as words: how they come from the device, a row a token."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxserve.models.config import DecoderConfig
from jaxserve.sampling.logprobs import token_logprobs
from jaxserve.sampling.params import MAX_LOGPROBS
from jaxserve.sampling.vocabulary import Vocabulary
from jaxserve.step.plan import Ints, LogprobRows
from sharding import LAYER_AXES, shards_of

LOGPROBS_WIDTH = 2 + 2 * MAX_LOGPROBS


def vocabulary_of(config: DecoderConfig, mesh: Mesh) -> Vocabulary:
    """The model's vocabulary, as each device has its part."""
    return Vocabulary(config.num_choices, LAYER_AXES if shards_of(mesh) > 1 else None)


def pack_logprobs(vocabulary: Vocabulary, logits: jax.Array, tokens: jax.Array, wanted: jax.Array | None = None) -> jax.Array:
    """Log-probabilities of tokens int32[N] under logits f32[N,C] as int32[N,LOGPROBS_WIDTH].

    A row is, as bits of float32, the token's log-probability, then its rank, MAX_LOGPROBS likeliest ids and their
    log-probabilities; see `token_logprobs` for `wanted`.
    """
    columns = min(MAX_LOGPROBS, vocabulary.size)
    chosen, rank, top_ids, top = token_logprobs(logits, tokens, columns, vocabulary, wanted)
    spare = ((0, 0), (0, MAX_LOGPROBS - columns))
    parts = (_bits(chosen)[:, None], rank[:, None], jnp.pad(top_ids, spare), jnp.pad(_bits(top), spare))
    return jnp.concatenate(parts, axis=1)


def unpack_logprobs(words: Ints, config: DecoderConfig) -> LogprobRows:
    """What `pack_logprobs` packed, on the host; a tiny vocabulary has fewer alternatives than there is room for."""
    floats = words.view(np.float32)
    columns = min(MAX_LOGPROBS, config.num_choices)
    ids, top = 2, 2 + MAX_LOGPROBS
    return LogprobRows(floats[:, 0], words[:, 1], words[:, ids : ids + columns], floats[:, top : top + columns])


def _bits(values: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(values, jnp.int32)
