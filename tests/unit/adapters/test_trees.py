"""Adapters of trees of arrays are those that PEFT's tensors make, number for number; what does not fit is named by its path."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from jaxserve.adapters.peft import AdapterFormat
from jaxserve.adapters.trees import AdapterTrees
from jaxserve.errors import CheckpointError, ConfigError, UnsupportedModelError
from jaxserve.models.registry import decoder_config
from jaxserve.weights.live.views import Part, View
from sharding import make_mesh
from tests.support.lora_trees import ATTENTION, CONFIG, MLP, gemma_tree, maxtext_tree, peft_tensors, tunix_tree
from tests.support.tunix_models import MODELS

LLAMA = MODELS["llama3"][1]
TURNED = {
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


def trees(hf: dict[str, Any], max_rank: int = 8) -> AdapterTrees:
    return AdapterTrees(AdapterFormat(decoder_config(hf), 1, 8, "float32"), max_rank)


def same(hf: dict[str, Any], tree: Any, tensors: dict[str, Any], **options: Any) -> None:
    got, want = trees(hf).make(tree, CONFIG, **options), trees(hf).make(tensors, CONFIG)
    np.testing.assert_array_equal(got.numbers, want.numbers)
    assert got.numbers.any()
    assert (got.digest, got.rank, got.modules) == (want.digest, want.rank, want.modules)


@pytest.mark.parametrize("name", ["llama3", "qwen2", "qwen3"])
def test_what_qwix_puts_beside_tunix_kernels(name: str) -> None:
    config = decoder_config(MODELS[name][1])
    tensors = peft_tensors(config, 1)
    tree = tunix_tree(config, tensors)
    same(MODELS[name][1], tree, tensors)
    mesh = make_mesh(2)
    divided = NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
    live = {leaf: jax.device_put(one, divided if len(one) % 2 == 0 else None) for leaf, one in tree.items()}
    same(MODELS[name][1], nnx.State({leaf: nnx.LoRAParam(one) for leaf, one in live.items()}), tensors, mapping="tunix")


@pytest.mark.parametrize(("name", "fused"), [("gemma3", False), ("gemma3 fused", True)])
def test_projections_of_one_einsum_share_a(name: str, fused: bool) -> None:
    config = decoder_config(MODELS[name][1])
    tensors = peft_tensors(config, 2, shared=ATTENTION[0 if fused else 1 : 3])
    same(MODELS[name][1], gemma_tree(config, tensors, fused=fused), tensors)
    some = {key: one for key, one in tensors.items() if "o_proj" in key}
    tree = {key: one for key, one in gemma_tree(config, tensors, fused=fused).items() if "attn_vec" in key}
    same(MODELS[name][1], tree, some)


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("hf", [LLAMA, TURNED], ids=["halves", "neighbours"])
def test_what_maxtext_has(hf: dict[str, Any], stacked: bool) -> None:
    config = decoder_config(hf)
    tensors = {key: one for key, one in peft_tensors(config, 3).items() if "mlp" not in key}
    same(hf, maxtext_tree(config, tensors, stacked=stacked, turned=hf is TURNED), tensors)


def test_names_of_peft_with_and_without_their_beginning() -> None:
    tensors = peft_tensors(decoder_config(LLAMA), 4)
    same(LLAMA, {f"base_model.model.{name}": one for name, one in tensors.items()}, tensors)
    assert trees(LLAMA).make(tensors, {**CONFIG, "lora_alpha": 7}).digest != trees(LLAMA).make(tensors, CONFIG).digest


def test_a_module_gives_its_lora_alone() -> None:
    config = decoder_config(LLAMA)
    tensors = peft_tensors(config, 5)

    class Model(nnx.Module):
        def __init__(self) -> None:
            self.layers: dict[int, Any] = nnx.data({})
            for name, one in tunix_tree(config, tensors).items():
                _, layer, part, module, leaf = name.split(".")
                node = self.layers.setdefault(int(layer), {}).setdefault(part, {}).setdefault(module, {})
                node[leaf] = nnx.LoRAParam(one)
                node[leaf.split("_")[0]] = nnx.Param(one)

    same(LLAMA, Model(), tensors)


Q, GATE = "layers.1.attn.q_proj.w_lora_a", "layers.0.mlp.gate_proj.kernel_lora_b"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({Q: lambda one: one * np.nan}, f"{Q} has numbers that are not finite"),
        ({GATE: lambda one: one[:, :-1]}, rf"{GATE} is \[3, 11\], and must be \[3, 12\]"),
        ({GATE: lambda one: one.astype(np.int32)}, rf"{GATE} \(int32\)"),
        ({Q: None}, r"only one of lora_A and lora_B of model\.layers\.1\.self_attn\.q_proj"),
        (
            {"layers.1.attn.q_proj.w": lambda one: np.ones(2, np.float32)},
            r"no part of a LoRA.*: layers\.1\.attn\.q_proj\.w",
        ),
        ({"lm_head.w_lora_a": lambda one: np.ones((8, 3), np.float32)}, r"no part of a LoRA adapter.*: lm_head\.w_lora_a"),
    ],
)
def test_what_does_not_fit_is_named_by_its_path(change: dict[str, Any], words: str) -> None:
    config = decoder_config(LLAMA)
    tree = tunix_tree(config, peft_tensors(config, 6))
    for name, changed in change.items():
        if changed is None:
            del tree[name]
        else:
            tree[name] = changed(tree.get(name))
    with pytest.raises(CheckpointError, match=words) as caught:
        trees(LLAMA).make(tree, CONFIG)
    assert caught.value.param == "params"


def test_what_cannot_be_read_is_refused() -> None:
    config = decoder_config(LLAMA)
    tensors = peft_tensors(config, 7)
    tree = tunix_tree(config, tensors)
    with pytest.raises(CheckpointError, match="has rank 3, and max_lora_rank is 2"):
        trees(LLAMA, max_rank=2).make(tree, CONFIG)
    with pytest.raises(CheckpointError, match=r"is \[8, 3\], and must be \[8, 4\]"):
        trees(LLAMA).make(tree, {**CONFIG, "r": 4})
    with pytest.raises(CheckpointError, match="lora_alpha must be a number"):
        trees(LLAMA).make(tree, {"r": 3})
    with pytest.raises(CheckpointError, match="has no tensors"):
        trees(LLAMA).make({}, CONFIG, mapping="hf")
    with pytest.raises(ConfigError, match="mapping must be"):
        trees(LLAMA).make(tree, CONFIG, mapping="keras")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModelError, match="MaxText"):
        trees(MODELS["qwen3"][1]).make(maxtext_tree(config, tensors, stacked=True, turned=False), CONFIG)
    gone = jax.device_put(tree[Q])
    gone.delete()
    with pytest.raises(CheckpointError, match=f"deleted or donated: {Q}"):
        trees(LLAMA).make({**tree, Q: gone}, CONFIG)


def test_a_table_of_views_says_where_kernels_are() -> None:
    config = decoder_config(LLAMA)
    name = f"model.layers.0.mlp.{MLP[0]}"
    tensors = {key: one for key, one in peft_tensors(config, 8).items() if key.startswith(f"{name}.")}
    tree = {"gate_lora_a": tensors[f"{name}.lora_A.weight"].T, "gate_lora_b": tensors[f"{name}.lora_B.weight"].T}
    kernel = View("gate", (config.ffn_size, config.hidden_size))
    views = {f"{name}.weight": kernel}
    same(LLAMA, tree, tensors, mapping=views)
    with pytest.raises(CheckpointError, match="gate is not a kernel that LoRA can be read beside"):
        trees(LLAMA).make(tree, CONFIG, mapping={f"{name}.weight": View("gate", kernel.shape, (Part(0, 0, 2),))})
