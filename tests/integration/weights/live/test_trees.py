"""Trainers' trees: MaxText's by its own conversion's conventions, Tunix's as Tunix itself loads them."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from jaxserve.errors import CheckpointError, ConfigError, UnsupportedModelError
from jaxserve.models.registry import decoder_config
from jaxserve.weights.jobs import collect
from jaxserve.weights.live.incoming import LiveModel
from jaxserve.weights.load import load_params
from jaxserve.weights.packed import Packer
from sharding import make_mesh
from tests.golden import reading
from tests.support.live import on_devices, random_tensors, same, write_checkpoint
from tests.support.tiers import tiered
from tests.support.tunix_models import MODELS, SEED

TUNIX = Path(reading.__file__).parent / "data" / "tunix.npz"
LLAMA = MODELS["llama3"][1]
LLAMA31 = {
    **LLAMA,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}


def tunix_tree(name: str) -> dict[str, Any]:
    with np.load(TUNIX) as stored:
        return on_devices({key.split("/")[1]: stored[key] for key in stored if key.split("/")[0] == name})


def nested(arrays: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *parents, last = name.split(".")
        node = tree
        for key in parents:
            node = node.setdefault(key, {})
        node[last] = array
    return tree


def live(hf: dict[str, Any], tensor: int = 1) -> LiveModel:
    config, mesh = decoder_config(hf), make_mesh(tensor)
    return LiveModel(config, mesh, "float32", Packer(config, mesh))


def made(hf: dict[str, Any], tree: Any, tensor: int = 1, **options: Any) -> Any:
    incoming = live(hf, tensor).check(tree, **options)
    return collect(list(incoming.jobs), (weight for _, weight in incoming.parameters()), None)


def loaded(directory: Path, hf: dict[str, Any], seed: int, tensor: int = 1) -> Any:
    config, mesh = decoder_config(hf), make_mesh(tensor)
    written = write_checkpoint(directory, hf, random_tensors(hf, seed))
    return load_params(written, config, mesh, "float32", packer=Packer(config, mesh))


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_tunix(tmp_path, name, tensor):
    hf = MODELS[name][1]
    assert same(made(hf, tunix_tree(name), tensor), loaded(tmp_path, hf, SEED, tensor))


def test_nested_trees_and_nnx(tmp_path):
    hf = MODELS["qwen3"][1]
    expected = loaded(tmp_path, hf, SEED)
    arrays = tunix_tree("qwen3")
    tree = nested(arrays)
    tree["layers"] = [tree["layers"][str(number)] for number in range(2)]
    assert same(made(hf, tree), expected)
    state = nnx.from_flat_state([(tuple(name.split(".")), nnx.Param(array)) for name, array in arrays.items()])
    assert same(made(hf, state), expected)


def test_a_module_gives_its_parameters_alone():
    class Model(nnx.Module):
        def __init__(self) -> None:
            self.embedder = nnx.Embed(24, 8, rngs=nnx.Rngs(0))
            self.noise = nnx.Dropout(0.5, rngs=nnx.Rngs(1))

    with pytest.raises(CheckpointError, match=r"names like embedder.embedding are of no tree") as raised:
        live(LLAMA).check(Model())
    assert raised.value.param == "mapping"


def maxtext_tree(hf: dict[str, Any], *, scanned: bool, neighbours: bool) -> dict[str, Any]:
    """What MaxText's own conversion makes of the seeded checkpoint: with loops, from the conventions that it documents."""
    tensors, dim, embed = random_tensors(hf, SEED), hf["head_dim"], hf["hidden_size"]

    def heads(name: str, *, turned: bool) -> Any:
        matrix = tensors[name].T.reshape(embed, -1, dim)
        if not turned or not neighbours:
            return matrix
        mixed = np.empty_like(matrix)
        mixed[..., ::2], mixed[..., 1::2] = matrix[..., : dim // 2], matrix[..., dim // 2 :]
        return mixed

    layers: list[dict[str, Any]] = []
    for number in range(hf["num_hidden_layers"]):
        there = f"model.layers.{number}"
        layers.append(
            {
                "pre_self_attention_layer_norm.scale": tensors[f"{there}.input_layernorm.weight"],
                "post_self_attention_layer_norm.scale": tensors[f"{there}.post_attention_layernorm.weight"],
                "self_attention.query.kernel": heads(f"{there}.self_attn.q_proj.weight", turned=True) / np.float32(dim**0.5),
                "self_attention.key.kernel": heads(f"{there}.self_attn.k_proj.weight", turned=True),
                "self_attention.value.kernel": heads(f"{there}.self_attn.v_proj.weight", turned=False),
                "self_attention.out.kernel": tensors[f"{there}.self_attn.o_proj.weight"].T.reshape(-1, dim, embed),
                "mlp.wi_0.kernel": tensors[f"{there}.mlp.gate_proj.weight"].T,
                "mlp.wi_1.kernel": tensors[f"{there}.mlp.up_proj.weight"].T,
                "mlp.wo.kernel": tensors[f"{there}.mlp.down_proj.weight"].T,
            }
        )
    tree = {
        "params.token_embedder.embedding": tensors["model.embed_tokens.weight"],
        "params.decoder.decoder_norm.scale": tensors["model.norm.weight"],
        "params.decoder.logits_dense.kernel": tensors["lm_head.weight"].T,
    }
    if scanned:
        tree |= {f"params.decoder.layers.{name}": np.stack([layer[name] for layer in layers], 1) for name in layers[0]}
    else:
        tree |= {f"params.decoder.layers_{i}.{name}": array for i, layer in enumerate(layers) for name, array in layer.items()}
    return nested(on_devices({name: np.ascontiguousarray(array) for name, array in tree.items()}))


@pytest.mark.parametrize(("neighbours", "scanned"), tiered(product((False, True), repeat=2), {(False, False), (True, True)}))
def test_maxtext(tmp_path, neighbours, scanned):
    hf = LLAMA31 if neighbours else LLAMA
    tree = maxtext_tree(hf, scanned=scanned, neighbours=neighbours)
    assert same(made(hf, tree), loaded(tmp_path, hf, SEED))


def test_maxtext_of_other_devices(tmp_path):
    """A trainer's devices need not be the engine's: of stacked layers one at a time comes over."""
    elsewhere = jax.sharding.NamedSharding(jax.make_mesh((2,), ("fsdp",), devices=jax.devices()[4:6]), jax.P("fsdp"))
    tree = jax.tree.map(lambda array: jax.device_put(array, elsewhere), maxtext_tree(LLAMA, scanned=True, neighbours=False))
    assert same(made(LLAMA, tree, tensor=2), loaded(tmp_path, LLAMA, SEED, tensor=2))


def test_what_is_not_read():
    with pytest.raises(UnsupportedModelError, match="MaxText are read for"):
        live(MODELS["qwen3"][1]).check(maxtext_tree(LLAMA, scanned=True, neighbours=False))
    with pytest.raises(CheckpointError, match=r"mapping has nothing for model.embed_tokens.weight"):
        live(LLAMA).check(tunix_tree("llama3"), mapping={})
    config, mesh = decoder_config(LLAMA), make_mesh(1)
    rounded = LiveModel(config, mesh, "float32", Packer(config, mesh, "int8"))
    with pytest.raises(ConfigError, match=r"head.kernel is held as int8"):
        rounded.check(on_devices(random_tensors(LLAMA, SEED)))
