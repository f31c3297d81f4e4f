"""Adapters from arrays: PEFT's tensors under PEFT's names, or the LoRA leaves of a trainer's tree."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxserve.adapters.config import AdapterConfig
from jaxserve.adapters.peft import PREFIX, A, AdapterFormat, AdapterTensors, B, HostAdapter, check_fits, pack
from jaxserve.adapters.views import LoraView, Side
from jaxserve.errors import CheckpointError, ConfigError
from jaxserve.jax_settings import engine_settings
from jaxserve.models.config import DecoderConfig
from jaxserve.models.lora import lora_rules
from jaxserve.weights.check import FLOATS
from jaxserve.weights.checkpoint import Block, Bounds
from jaxserve.weights.live.mapping import ParamMapping
from jaxserve.weights.live.maxtext_views import maxtext_layer_views
from jaxserve.weights.live.trees import Arrays, named_lora_arrays
from jaxserve.weights.live.tunix_views import tunix_views
from jaxserve.weights.live.views import Views
from jaxserve.weights.maxtext import LAYERS
from jaxserve.weights.safetensors import listed

LoraSettings = Mapping[str, Any] | AdapterConfig
"""What an adapter says of itself: the content of an adapter_config.json, of which `r` and `lora_alpha` are needed."""
_WHERE = "params of LoRA"
_ENDS: Mapping[Side, str] = {"a": A, "b": B}
_BESIDE = re.compile(r"(?P<base>.+)_lora_(?P<side>[ab])")  # qwix: kernel_lora_a beside kernel
_INSIDE = re.compile(r"(?P<module>.+)\.lora_(?P<side>[ab])\.(?P<leaf>\w+)")  # MaxText: lora_a.kernel beside kernel


class AdapterTrees:
    """What makes adapters of trees for one decoder.

    Args:
        form: how devices take them.
        max_rank: largest rank that is let in.
    """

    def __init__(self, form: AdapterFormat, max_rank: int) -> None:
        self._form = form
        self._max_rank = max_rank

    @engine_settings()
    def make(self, params: Any, config: LoraSettings, mapping: ParamMapping = "auto") -> HostAdapter:
        """An adapter of a tree: nested dicts, an nnx.Module, of which LoRA's parameters are taken, or an nnx.State.

        Raises CheckpointError, which names the array and the limit, for what cannot be served, ConfigError for a mapping.
        """
        return pack(self.fit(named_lora_arrays(params), config, mapping), self._form, self._max_rank)

    def fit(self, arrays: Arrays, config: LoraSettings, mapping: ParamMapping = "auto") -> AdapterTensors:
        """The tensors of an adapter, by names, shapes and dtypes alone: of the arrays nothing else need be there.

        Raises as `make` does.
        """
        parsed = config if isinstance(config, AdapterConfig) else AdapterConfig.given(config)
        tensors = lora_tensors(self._form.model, parsed, arrays, mapping, _WHERE, "params")
        check_fits(tensors, self._form, self._max_rank)
        return tensors


def lora_tensors(
    model: DecoderConfig, config: AdapterConfig, arrays: Arrays, mapping: ParamMapping, where: str, param: str
) -> AdapterTensors:
    """What a tree has, by PEFT's names. `where` and `param` are for errors, which are CheckpointErrors."""
    odd = [f"{name} ({array.dtype})" for name, array in arrays.items() if str(array.dtype) not in FLOATS]
    live = {name: array for name, array in arrays.items() if isinstance(array, jax.Array)}
    gone = [name for name, array in live.items() if array.is_deleted()]
    away = [name for name, array in live.items() if not array.is_fully_addressable]
    kinds = {f"not {', '.join(FLOATS)}": odd, "deleted or donated": gone, "on devices of other processes, too": away}
    for kind, found in kinds.items():
        if found:
            raise CheckpointError(f"{where}: {kind}: {listed(found)}", param=param)
    if mapping == "hf" or (mapping == "auto" and any(name.endswith((A, B)) for name in arrays)):
        tensors = _named_as_peft(arrays)
    else:
        tensors = _beside_kernels(model, config, arrays, mapping, where, param)
    shown = {name: tensor.name for name, tensor in tensors.items()}
    return AdapterTensors(config, _LiveTensors(tensors, arrays), where, param, shown)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One that an array has: A or B as it is, or as its view says."""

    name: str
    view: LoraView | None = None


class _LiveTensors:
    """See `peft.Stored`. An array comes to the host when it is read."""

    def __init__(self, tensors: Mapping[str, _Tensor], arrays: Arrays) -> None:
        self._tensors = tensors
        self._arrays = arrays
        self.shapes = {
            name: tuple(arrays[tensor.name].shape) if tensor.view is None else tensor.view.matrix_shape
            for name, tensor in tensors.items()
        }

    def read(self, name: str, bounds: Bounds) -> Block:
        tensor = self._tensors[name]
        array = np.asarray(self._arrays[tensor.name])
        matrix = array if tensor.view is None else tensor.view.matrix(array)
        return matrix[tuple(slice(*part) for part in bounds)]


def _named_as_peft(arrays: Arrays) -> dict[str, _Tensor]:
    """PEFT's names, which may lack their beginning."""
    return {name if name.startswith(PREFIX) else PREFIX + name: _Tensor(name) for name in arrays}


def _beside_kernels(
    model: DecoderConfig, config: AdapterConfig, arrays: Arrays, mapping: ParamMapping, where: str, param: str
) -> dict[str, _Tensor]:
    leaves = {name: found for name in arrays if (found := _leaf(name)) is not None}
    kernels = frozenset(kernel for kernel, _ in leaves.values())
    views = _views(model, kernels, mapping)
    known = {views[source.name].name for rule in lora_rules(model).values() for source in rule.sources if source.name in views}
    odd = sorted(name for name in arrays if name not in leaves or leaves[name][0] not in known)
    if odd:
        raise CheckpointError(f"{where}: no part of a LoRA adapter of this model: {listed(odd)}", param=param)
    tensors: dict[str, _Tensor] = {}
    for module, view in ((name.removesuffix(".weight"), view) for name, view in views.items()):
        for name in (name for name, (kernel, _) in leaves.items() if kernel == view.name):
            side, shape = leaves[name][1], tuple(arrays[name].shape)
            lora = LoraView(view, side, config.rank_of(module), len(shape))
            if shape != lora.shape:
                raise CheckpointError(f"{where}: {name} is {list(shape)}, and must be {list(lora.shape)}", param=param)
            tensors[PREFIX + module + _ENDS[side]] = _Tensor(name, lora)
    return tensors


def _leaf(name: str) -> tuple[str, Side] | None:
    """The kernel that an array lies beside, and which of A and B it is; None for another array."""
    if (found := _BESIDE.fullmatch(name)) is not None:
        return found["base"], "a" if found["side"] == "a" else "b"
    if (found := _INSIDE.fullmatch(name)) is not None:
        return f"{found['module']}.{found['leaf']}", "a" if found["side"] == "a" else "b"
    return None


def _views(model: DecoderConfig, kernels: frozenset[str], mapping: ParamMapping) -> Views:
    """The views of the projections' kernels; `kernels` are those that something lies beside."""
    if callable(mapping):
        return mapping(model, dict.fromkeys(kernels))
    if isinstance(mapping, Mapping):
        return mapping
    is_maxtext = any(LAYERS in name for name in kernels)
    match ("maxtext" if is_maxtext else "tunix") if mapping == "auto" else mapping:
        case "maxtext":
            return maxtext_layer_views(model, kernels)
        case "tunix":
            return tunix_views(model, lora_rules(model).values(), dict.fromkeys(kernels))
    raise ConfigError(f"mapping must be 'auto', 'hf', 'maxtext', 'tunix' or a table, not {mapping!r}", param="mapping")
