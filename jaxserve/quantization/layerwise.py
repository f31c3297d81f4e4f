"""Runs a model over windows of tokens in float32, one layer in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from jaxserve.errors import UnsupportedModelError
from jaxserve.models.binding import Params, abstract_params, bind
from jaxserve.models.config import DecoderConfig
from jaxserve.models.decoder import Decoder, Stream
from jaxserve.models.dense_attention import dense_attend
from jaxserve.models.experts import dispatch_all
from jaxserve.models.registry import weight_rules
from jaxserve.models.rope import rotation
from jaxserve.models.rules import Path
from jaxserve.quantization.calibration import Windows
from jaxserve.weights.checkpoint import Tensors
from jaxserve.weights.packing import read_block
from pallas_kernels.matmul import Weight

DTYPE = "float32"
Hidden = Sequence[jax.Array]
"""Activations [T, E] of each window."""
Flat = Mapping[Path, Weight]
"""Parameters by path."""
Told = Callable[[int, int], None]


class Layerwise:
    """A decoder that is run layer by layer.

    Args:
        config: the decoder.
        tensors: of the original; embedding, norms and head are taken from them.
        window: tokens of a window.
        told: of layers that were run, and of how many.

    Raises UnsupportedModelError for a decoder whose layers need more than what the one before gave.
    """

    def __init__(self, config: DecoderConfig, tensors: Tensors, window: int, told: Told) -> None:
        if config.shares_keys or config.shares_choices or config.layer_input:
            raise UnsupportedModelError(
                f"calibration: layers of {config.architecture} share keys or choices, or are given more than the stream: "
                "none runs alone",
                param="calibration",
            )
        self._told = told
        self._config = config.serving(window)
        self._tree = abstract_params(self._config, DTYPE)
        rules = weight_rules(config)
        self._rules = {rule.path: rule for rule in rules}
        self._ends = self.read(tensors, [rule.path for rule in rules if rule.path[0] != "layers"])
        self._layers = [jax.jit(partial(self._layer, number)) for number in range(config.num_layers)]
        self._embed, self._losses = jax.jit(self._embedded), jax.jit(self._lost)

    @property
    def num_layers(self) -> int:
        return self._config.num_layers

    def read(self, tensors: Tensors, paths: Sequence[Path]) -> dict[Path, jax.Array]:
        """Parameters made from tensors, in float32."""
        return {path: jnp.asarray(self._read(tensors, path)) for path in paths}

    def read_layer(self, tensors: Tensors, number: int) -> dict[Path, jax.Array]:
        return self.read(tensors, [path for path in self._rules if path[:2] == ("layers", str(number))])

    def embed(self, windows: Windows) -> Hidden:
        """What the first layer is given."""
        return [self._embed(self._ends, window) for window in windows]

    def layer(self, number: int, parameters: Flat, hidden: Hidden) -> Hidden:
        """What the next layer is given."""
        return [self._layers[number]({**self._ends, **parameters}, each) for each in hidden]

    def losses(self, hidden: Hidden, windows: Windows) -> npt.NDArray[np.float64]:
        """-log p of each token but the first [N, T - 1], from what the last layer gave."""
        each = [self._losses(self._ends, x, window) for x, window in zip(hidden, windows, strict=True)]
        return np.stack([np.asarray(losses, np.float64) for losses in each])

    def run(self, windows: Windows, parameters: Callable[[int], Flat]) -> npt.NDArray[np.float64]:
        """The losses with the parameters that each layer is to have."""
        hidden = self.embed(windows)
        for number in range(self.num_layers):
            hidden = self.layer(number, parameters(number), hidden)
            self._told(number + 1, self.num_layers)
        return self.losses(hidden, windows)

    def _read(self, tensors: Tensors, path: Path) -> npt.NDArray[np.float32]:
        leaf: Any = reduce(lambda node, key: node[key], path, self._tree)
        whole = (slice(None),) * len(leaf.shape)
        block: npt.NDArray[np.float32] = read_block(tensors, self._rules[path], leaf.shape, whole, DTYPE)
        return block

    def _bound(self, flat: Flat) -> Decoder:
        """The decoder with some parameters; the others have shapes alone."""
        return bind(self._config, _replaced(self._tree, flat))

    def _embedded(self, flat: Flat, tokens: jax.Array) -> jax.Array:
        x: jax.Array = self._bound(flat).embedding(tokens)
        return x

    def _layer(self, number: int, flat: Flat, x: jax.Array) -> jax.Array:
        decoder, rope = self._bound(flat), self._config.ropes[number]
        positions = jnp.arange(x.shape[0], dtype=jnp.int32)
        turned = None if rope is None else rotation(rope, self._config.heads_of(number).head_dim, positions)
        return decoder.after(number, Stream(x), turned, decoder.attending(dense_attend, positions), dispatch_all).total()

    def _lost(self, flat: Flat, x: jax.Array, tokens: jax.Array) -> jax.Array:
        decoder = self._bound(flat)
        logits = decoder.logits(decoder.norms(decoder.norms.final, x))[:-1]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits, axis=-1), tokens[1:, None], axis=-1)[:, 0]


def perplexity(losses: npt.NDArray[np.float64]) -> float:
    return float(np.exp(losses.mean()))


def _replaced(tree: Params, flat: Flat, path: Path = ()) -> Params:
    return {
        key: _replaced(entry, flat, (*path, key)) if isinstance(entry, dict) else flat.get((*path, key), entry)
        for key, entry in tree.items()
    }
