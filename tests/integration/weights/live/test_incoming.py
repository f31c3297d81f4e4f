"""A tree on devices becomes, bit for bit, what loading the same checkpoint gives."""

from __future__ import annotations

from itertools import product
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxserve.models.registry import decoder_config
from jaxserve.weights.jobs import collect
from jaxserve.weights.live.incoming import LiveModel
from jaxserve.weights.live.views import At, View
from jaxserve.weights.load import load_params
from jaxserve.weights.packed import Packer
from sharding import make_mesh
from tests.support.families import COMMON, FAMILIES, SPARSE, hf_config
from tests.support.live import on_devices, random_tensors, same, write_checkpoint
from tests.support.tiers import tiered

CONFIGS: dict[str, dict[str, Any]] = {
    **{name: hf_config(name) for name in FAMILIES | SPARSE},
    "phi3": {**COMMON, "architectures": ["Phi3ForCausalLM"], "num_key_value_heads": 2, "pad_token_id": 0},
}


def model(hf: dict[str, Any], tensor: int, dtype: str) -> tuple[LiveModel, Packer]:
    config, mesh = decoder_config(hf), make_mesh(tensor)
    packer = Packer(config, mesh)
    return LiveModel(config, mesh, dtype, packer), packer


def made(live: LiveModel, tree: Any, **options: Any) -> Any:
    incoming = live.check(tree, **options)
    return collect(list(incoming.jobs), (weight for _, weight in incoming.parameters()), None)


# Each family, on one device and on two in turn.
CORE = {(family, 1 + number % 2) for number, family in enumerate(CONFIGS)}


@pytest.mark.parametrize(("family", "tensor"), tiered(product(CONFIGS, (1, 2)), CORE))
def test_what_loading_gives(tmp_path, family, tensor):
    hf = CONFIGS[family]
    tensors = random_tensors(hf, 1)
    live, packer = model(hf, tensor, "float32")
    directory = write_checkpoint(tmp_path, hf, tensors)
    loaded = load_params(directory, decoder_config(hf), make_mesh(tensor), "float32", packer=packer)
    assert same(made(live, on_devices(tensors)), loaded)
    programs = live.num_programs
    assert same(made(live, tensors), loaded)  # from the host's memory, as another process sends them
    assert live.num_programs == programs


@pytest.mark.parametrize(("stored", "dtype"), [("bfloat16", "float32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16")])
def test_dtypes(tmp_path, stored, dtype):
    hf = hf_config("qwen2")
    tensors = random_tensors(hf, 2, ml_dtypes.bfloat16 if stored == "bfloat16" else np.float32)
    live, packer = model(hf, 1, dtype)
    loaded = load_params(write_checkpoint(tmp_path, hf, tensors), decoder_config(hf), make_mesh(1), dtype, packer=packer)
    assert same(made(live, on_devices(tensors)), loaded)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(loaded))


@pytest.mark.parametrize(("family", "tensor"), tiered(product(("qwen3", "qwen2_moe"), (1, 2)), {("qwen3", 2), ("qwen2_moe", 1)}))
def test_arrays_in_the_hosts_memory_stay_their_owners(family, tensor):
    """Also stacked ones, of which no more than a layer goes to the devices at a time."""
    hf = CONFIGS[family]
    tensors = random_tensors(hf, 3)
    live, _ = model(hf, tensor, "float32")
    expected = made(live, on_devices(tensors))
    given = {name: array.copy() for name, array in tensors.items()}
    found = made(live, given)
    for array in given.values():
        array[...] = np.nan
    assert same(found, expected)
    layers = range(hf["num_hidden_layers"])
    views = {name: View(name, array.shape) for name, array in tensors.items()}
    stacked = dict(tensors)
    for axis, end in enumerate(("input_layernorm.weight", "self_attn.q_proj.weight")):
        names = [f"model.layers.{layer}.{end}" for layer in layers]
        stacked[end] = np.stack([stacked.pop(name) for name in names], axis)
        views |= {name: View(end, stacked[end].shape, (At(axis),), (layer,)) for layer, name in enumerate(names)}
    assert len(layers) > 1
    assert same(made(live, stacked, mapping=views), expected)
