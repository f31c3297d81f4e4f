"""From what steps read of a prompt's chunks to the numbers that a client gets.

Devices pool: a step gives one vector for a row, the sum over its tokens of this step (float32). What is left is some thousand
operations a request on numbers that the host has anyway, and depends on the request: that is done here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from jaxserve.pooling.params import PoolingParams
from jaxserve.pooling.pooler import Pooler

Floats = npt.NDArray[np.float32]
_LEAST_LENGTH = 1e-12  # of a vector that is normalized, as in torch.nn.functional.normalize


class PooledChunks:
    """Takes in what the steps of one prompt read.

    Args:
        num_tokens: of the prompt.
    """

    def __init__(self, pooler: Pooler, params: PoolingParams, num_tokens: int) -> None:
        self._pooler = pooler
        self._params = params
        self._tokens = num_tokens
        self._chunks: list[Floats] = []

    def add(self, chunk: Floats) -> None:
        """float32[N,width]: sums over the tokens of a chunk, or every token's vector."""
        self._chunks.append(chunk)

    def pooled(self) -> Floats:
        """The embedding [dimensions], every token's [T,dimensions], or the head's outputs [classes]."""
        pooling = self._pooler.pooling_of(self._params)
        found = np.concatenate(self._chunks)
        if pooling != "all":
            found = found.sum(0)
        if pooling == "mean" and not self._pooler.whole:
            found /= self._tokens
        return (
            _embedding(found, self._pooler, self._params) if self._params.embeds else _outputs(found, self._pooler, self._params)
        )


def _embedding(found: Floats, pooler: Pooler, params: PoolingParams) -> Floats:
    found = found[..., : params.dimensions]
    normalizes = pooler.normalizes if params.use_activation is None else params.use_activation
    return normalized(found) if normalizes else found


def _outputs(found: Floats, pooler: Pooler, params: PoolingParams) -> Floats:
    activates = params.task != "reward" if params.use_activation is None else params.use_activation
    if not activates or pooler.activation == "none":
        return found
    return _sigmoid(found) if pooler.activation == "sigmoid" else _softmax(found)


def normalized(vectors: npt.NDArray[Any]) -> Floats:
    """The same directions with length 1."""
    lengths: Any = np.linalg.norm(vectors, axis=-1, keepdims=True)
    scaled: Floats = (vectors / np.maximum(lengths, _LEAST_LENGTH)).astype(np.float32, copy=False)
    return scaled


def _sigmoid(outputs: Floats) -> Floats:
    # Of numbers that are at most 0: exp of large ones overflows.
    small = np.exp(-np.abs(outputs))
    probabilities: Floats = np.where(outputs >= 0, 1 / (1 + small), small / (1 + small)).astype(np.float32)
    return probabilities


def _softmax(outputs: Floats) -> Floats:
    shares = np.exp(outputs - outputs.max(-1, keepdims=True))
    probabilities: Floats = (shares / shares.sum(-1, keepdims=True)).astype(np.float32, copy=False)
    return probabilities
