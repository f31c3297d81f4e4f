"""A trainer's forward pass of the served decoder: a whole sequence at once, plain attention, no pages and no kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.models.binding import Params, bind
from jaxserve.models.config import DecoderConfig
from jaxserve.step.plan import Floats
from pallas_kernels.ragged_paged_attention import AttentionOptions
from pallas_kernels.rotate_and_write import Rotation, rotate

_PADDED_TO = 64  # tokens: sequences of similar lengths share a compilation


def dense_attend(
    layer: int,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array | None,
    rope: Rotation | None,
    options: AttentionOptions,
    sinks: jax.Array | None,
) -> jax.Array:
    """Causal attention over one sequence that is the whole step; see `Attend`."""
    if rope is not None:
        q, k = rotate(q, rope), rotate(k, rope)
    v = k[..., : options.value_dim] if v is None else v
    tokens, heads, head_dim = q.shape
    grouped = q.reshape(tokens, k.shape[1], -1, head_dim).astype(jnp.float32)
    scores = jnp.einsum("tkgd,ukd->kgtu", grouped, k.astype(jnp.float32)) * options.scale
    if options.soft_cap is not None:
        scores = options.soft_cap * jnp.tanh(scores / options.soft_cap)
    distance = jnp.arange(tokens)[:, None] - jnp.arange(tokens)[None, :]
    seen = (distance >= 0) & (distance < (tokens if options.window is None else options.window))
    scores = jnp.where(seen[None, None], scores, -jnp.inf)
    if sinks is not None:
        sink = sinks.astype(jnp.float32).reshape(*scores.shape[:2], 1, 1)
        scores = jnp.concatenate([scores, jnp.broadcast_to(sink, (*scores.shape[:3], 1))], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1)[..., :tokens]
    attended = jnp.einsum("kgtu,ukd->tkgd", weights, v.astype(jnp.float32))
    return attended.reshape(tokens, heads, v.shape[-1]).astype(q.dtype)


class Trainer:
    """Log-probabilities of sequences by the decoder's own layers, as a trainer computes them.

    Args:
        config: the decoder.
        params: its parameters on one device.
    """

    def __init__(self, config: DecoderConfig, params: Params) -> None:
        self._vocab_size = config.vocab_size
        self._run = jax.jit(partial(_next_logprobs, config))
        self._params = params

    def logprobs(self, tokens: Sequence[int], temperature: float = 1.0) -> Floats:
        """float32[T-1], natural log, of each token after the first, given those before it."""
        padded = np.zeros(-(-len(tokens) // _PADDED_TO) * _PADDED_TO + 1, np.int32)  # padding comes after what sees it
        padded[: len(tokens)] = tokens
        every = self._run(self._params, padded[:-1], padded[1:], np.float32(temperature))
        return np.asarray(every)[: len(tokens) - 1]


def _next_logprobs(
    config: DecoderConfig, params: Params, tokens: jax.Array, following: jax.Array, temperature: jax.Array
) -> jax.Array:
    decoder = bind(config, params)
    logits = decoder.logits(decoder.hidden(tokens, jnp.arange(tokens.shape[0]), dense_attend))[:, : config.vocab_size]
    scores = jax.nn.log_softmax(logits.astype(jnp.float32) / temperature, axis=-1)
    return jnp.take_along_axis(scores, following[:, None], axis=1)[:, 0]
