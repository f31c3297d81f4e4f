"""Trees of MaxText, layers stacked ("scanned") or not; what `weights.maxtext` says of checkpoints holds of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from jaxserve.models.config import DecoderConfig
from jaxserve.weights.live.trees import Arrays
from jaxserve.weights.live.views import At, Halves, Permute, Reshape, Step, Times, View, Views
from jaxserve.weights.maxtext import EMBEDDING, Stored, stored_tensors, tensors_beside, usual_rope


def is_maxtext(arrays: Arrays) -> bool:
    return any(name.endswith(EMBEDDING) for name in arrays)


def maxtext_views(config: DecoderConfig, arrays: Arrays) -> Views:
    """Raises UnsupportedModelError for a family that is not read, CheckpointError for a tree that is not of this decoder."""
    return _views(config, stored_tensors(config, {name: tuple(array.shape) for name, array in arrays.items()}))


def maxtext_layer_views(config: DecoderConfig, names: Collection[str]) -> Views:
    """Of a tree that has only some arrays of layers, or what lies beside them. Raises UnsupportedModelError."""
    return _views(config, tensors_beside(config, names))


def _views(config: DecoderConfig, stored: Mapping[str, Stored]) -> Views:
    neighbours = usual_rope(config) == "neighbours"
    return {name: _view(tensor, config.num_layers, neighbours=neighbours) for name, tensor in stored.items()}


def _view(tensor: Stored, layers: int, *, neighbours: bool) -> View:
    steps: list[Step] = [] if tensor.layer is None else [At(1)]
    if tensor.turned and neighbours:
        steps.append(Halves())
    if tensor.factor != 1.0:
        steps.append(Times(tensor.factor))
    if tensor.inputs < len(tensor.shape):
        inputs = math.prod(tensor.shape[: tensor.inputs])
        steps += [Reshape((inputs, math.prod(tensor.shape[tensor.inputs :]))), Permute((1, 0))]
    return View(tensor.name, tensor.stored_shape(layers), tuple(steps), () if tensor.layer is None else (tensor.layer,))
