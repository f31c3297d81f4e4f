"""What is read of prompts that are pooled: hidden states, or what a head makes of them, summed over a row's tokens of a step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxserve.executor.readers import Finish, Read, Reader
from jaxserve.models.binding import Model
from jaxserve.models.config import DecoderConfig
from jaxserve.step.plan import Ints, Reading
from jaxserve.step.tasks import HEAD, POOLED, TOKEN_VECTORS, WHOLE


def _hidden(config: DecoderConfig, mesh: Mesh) -> Read:
    def read(model: Model, hidden: jax.Array, values: jax.Array) -> jax.Array:
        return jax.lax.bitcast_convert_type(hidden.astype(jnp.float32), jnp.int32)

    return read


def _vectors(words: Ints, config: DecoderConfig) -> Reading:
    return Reading(vectors=words.view(np.float32))


def _embedded(config: DecoderConfig, mesh: Mesh) -> Read:
    def read(model: Model, hidden: jax.Array, values: jax.Array) -> jax.Array:
        return jax.lax.bitcast_convert_type(model.embedded(hidden), jnp.int32)

    return read


POOLED_READER = Reader(POOLED, lambda config: config.embedding_size, _embedded, _vectors, sums=True)


def _embed_whole(config: DecoderConfig, mesh: Mesh) -> Finish:
    def finish(model: Model, pooled: jax.Array) -> jax.Array:
        return jax.lax.bitcast_convert_type(model.embedded(pooled), jnp.int32)

    return finish


def _score_whole(config: DecoderConfig, mesh: Mesh) -> Finish:
    def finish(model: Model, pooled: jax.Array) -> jax.Array:
        assert model.score is not None, "a model with a head"
        return jax.lax.bitcast_convert_type(model.score(pooled), jnp.int32)

    return finish


WHOLE_READER = Reader(WHOLE, lambda config: config.embedding_size, _hidden, _vectors, sums=True, finish=_embed_whole)
WHOLE_HEAD_READER = Reader(WHOLE, lambda config: config.labels, _hidden, _vectors, sums=True, finish=_score_whole, detail="head")
"""Of models that compute a prompt in one step: devices take the mean, and what heads make is of it."""

TOKEN_VECTORS_READER = Reader(TOKEN_VECTORS, lambda config: config.hidden_size, _hidden, _vectors)


def _scores(config: DecoderConfig, mesh: Mesh) -> Read:
    def read(model: Model, hidden: jax.Array, values: jax.Array) -> jax.Array:
        assert model.score is not None, "a model with a head"
        return jax.lax.bitcast_convert_type(model.score(hidden), jnp.int32)

    return read


HEAD_READER = Reader(HEAD, lambda config: config.labels, _scores, _vectors, sums=True)


def token_head_reader(tokens: tuple[int, ...]) -> Reader:
    """A head made of a generator's own: the logits of some tokens; of two, by how much the second one's is larger."""
    width = 1 if len(tokens) == 2 else len(tokens)

    def make(config: DecoderConfig, mesh: Mesh) -> Read:
        def read(model: Model, hidden: jax.Array, values: jax.Array) -> jax.Array:
            logits = model.logits(hidden)[:, jnp.array(tokens)]
            outputs = logits[:, 1:] - logits[:, :1] if width == 1 else logits
            return jax.lax.bitcast_convert_type(outputs, jnp.int32)

        return read

    return Reader(HEAD, lambda config: width, make, _vectors, sums=True, detail=f"of tokens {tokens}")
