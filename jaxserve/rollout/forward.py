"""A trainer's forward pass of the served decoder: a whole sequence at once, plain attention, no pages and no kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.jax_settings import engine_settings
from jaxserve.models.binding import Params, bind
from jaxserve.models.config import DecoderConfig
from jaxserve.models.dense_attention import dense_attend
from jaxserve.models.experts import dispatch_all
from jaxserve.step.plan import Floats, Ints

_PADDED_TO = 64  # tokens: sequences of similar lengths share a compilation


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

    @engine_settings()
    def logprobs(self, tokens: Sequence[int], temperature: float = 1.0) -> Floats:
        """float32[T-1], natural log, of each token after the first, given those before it."""
        padded = np.zeros(-(-len(tokens) // _PADDED_TO) * _PADDED_TO + 1, np.int32)  # padding comes after what sees it
        padded[: len(tokens)] = tokens
        every = self._run(self._params, padded[:-1], padded[1:], np.float32(temperature))
        return np.asarray(every)[: len(tokens) - 1]


@engine_settings()
def layer_inputs(config: DecoderConfig, params: Params, tokens: Ints) -> list[Floats]:
    """float32[T, E] of each layer: what goes into it, of a sequence int32[T]."""
    return [np.asarray(one) for one in jax.jit(partial(_layer_inputs, config))(params, tokens)]


def _layer_inputs(config: DecoderConfig, params: Params, tokens: jax.Array) -> list[jax.Array]:
    taps = tuple(range(config.num_layers))
    _, found = bind(config, params).tapped(tokens, jnp.arange(tokens.shape[0]), dense_attend, dispatch_all, taps)
    assert found is not None, "there are layers"
    return jnp.split(found.astype(jnp.float32), len(taps), axis=1)


def _next_logprobs(
    config: DecoderConfig, params: Params, tokens: jax.Array, following: jax.Array, temperature: jax.Array
) -> jax.Array:
    decoder = bind(config, params)
    logits = decoder.logits(decoder.hidden(tokens, jnp.arange(tokens.shape[0]), dense_attend))[:, : config.vocab_size]
    scores = jax.nn.log_softmax(logits.astype(jnp.float32) / temperature, axis=-1)
    return jnp.take_along_axis(scores, following[:, None], axis=1)[:, 0]
