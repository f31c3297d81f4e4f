"""Adapters of experts: whoever has the experts, each token gets what its adapter would give it merged into the weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.adapters.config import AdapterConfig
from jaxserve.adapters.peft import PREFIX, AdapterFormat, AdapterTensors, pack
from jaxserve.config.lora import LoraShape
from jaxserve.executor.experts import ShardedDispatch
from jaxserve.executor.flat_params import FlatParams
from jaxserve.executor.lora import ShardedLora, abstract_loras, put_adapter
from jaxserve.models.adapted import StepAdapters
from jaxserve.models.binding import bind
from jaxserve.models.experts import Experts
from jaxserve.models.registry import decoder_config
from jaxserve.weights.load import load_params
from sharding import make_mesh, shards_of
from tests.support import hlo
from tests.support.families import hf_config
from tests.support.tiers import tiered

CONFIG = decoder_config(hf_config("qwen2_moe"))  # layer 0 alone has experts, 8 of which a token visits 3, and a shared one
assert CONFIG.experts is not None
EXPERTS = CONFIG.experts
BLOCK = "model.layers.0.mlp"
SLOTS, RANK, SCALE = 3, 8, 1.5
TOKENS = np.array([3, 0, 6], np.int32)  # of each slot; three behind them have no adapter, two are padding
SLOT_OF_TOKEN = (0, 0, 0, 2, 2, 2, 2, 2, 2, None, None, None)
PADDING = 2


class Tensors:
    """An adapter of random numbers, in the names of PEFT, of some experts and of the shared one."""

    def __init__(self, seed):
        rng, embed, experts = np.random.default_rng(seed), CONFIG.hidden_size, EXPERTS
        self.arrays = {}
        modules = [f"experts.{expert}" for expert in range(experts.count) if expert != seed]
        for module in (*modules, "shared_expert"):
            ffn = experts.shared_ffn_size if module == "shared_expert" else experts.ffn_size
            for name, inputs, outputs in (("gate_proj", embed, ffn), ("up_proj", embed, ffn), ("down_proj", ffn, embed)):
                if (seed, name) != (2, "up_proj"):
                    first = rng.standard_normal((5, inputs)) * inputs**-0.5
                    self.arrays[f"{PREFIX}{BLOCK}.{module}.{name}.lora_A.weight"] = first.astype(np.float32)
                    second = rng.standard_normal((outputs, 5)) * 0.3
                    self.arrays[f"{PREFIX}{BLOCK}.{module}.{name}.lora_B.weight"] = second.astype(np.float32)
        self.shapes = {name: array.shape for name, array in self.arrays.items()}

    def read(self, name, bounds):
        return self.arrays[name]

    def change(self, module):
        """Of a matrix [in, out]."""
        a = self.arrays.get(f"{PREFIX}{BLOCK}.{module}.lora_A.weight")
        return 0.0 if a is None else (self.arrays[f"{PREFIX}{BLOCK}.{module}.lora_B.weight"] @ a).T * SCALE


ADAPTERS = [Tensors(seed) for seed in range(SLOTS)]


def layer(mesh, x, adapters=None, params=None):
    """What layer 0's MLP makes of x, and the compiled program."""
    params = load_params("", CONFIG, mesh, "float32", load_format="dummy", seed=7) if params is None else params

    @jax.jit
    def run(params, x, loras):
        step = None if loras is None else StepAdapters(loras.tree(), jnp.asarray(TOKENS), ShardedLora(mesh))
        mlp = bind(CONFIG, params, adapters=step).layers["0"].mlp
        assert isinstance(mlp, Experts)
        return mlp(x, ShardedDispatch(mesh, jnp.int32(len(x) - PADDING)))

    program = run.lower(params, x, adapters).compile()
    return np.asarray(program(params, x, adapters)), program.as_text()


def slots_of(mesh):
    shapes = abstract_loras(CONFIG, mesh, "float32", LoraShape(SLOTS, RANK, experts=True))
    loras = FlatParams.of(jax.tree.map(lambda one: jax.device_put(np.zeros(one.shape, one.dtype), one.sharding), shapes))
    form = AdapterFormat(CONFIG, shards_of(mesh), RANK, "float32", experts=True)
    put = jax.jit(put_adapter, out_shardings=jax.tree.map(lambda array: array.sharding, loras))
    config = AdapterConfig.given({"r": 5, "lora_alpha": 5 * SCALE})
    for slot, tensors in enumerate(ADAPTERS):
        adapter = pack(AdapterTensors(config, tensors, "adapter", "lora_path"), form, RANK)
        loras = put(loras, np.int32(slot), adapter.numbers)
    return loras


@pytest.fixture(scope="module")
def x():
    rows = len(SLOT_OF_TOKEN) + PADDING
    return np.random.default_rng(3).standard_normal((rows, CONFIG.hidden_size)).astype(np.float32)


@pytest.fixture(scope="module")
def merged(x):
    """Each token by a model that has its adapter in its weights."""
    mesh = make_mesh(1)
    base = load_params("", CONFIG, mesh, "float32", load_format="dummy", seed=7)
    results: dict[int | None, np.ndarray] = {None: layer(mesh, x, params=base)[0]}
    for slot, tensors in enumerate(ADAPTERS):
        mlp = base["layers"]["0"]["mlp"]
        shared = {
            name: with_changes(mlp["shared"][name][None], tensors, ["shared_expert"], name)[0] for name in ("gate_up", "down")
        }
        experts = [f"experts.{expert}" for expert in range(EXPERTS.count)]
        routed = {name: with_changes(mlp[name], tensors, experts, name) for name in ("gate_up", "down")}
        params = {**base, "layers": {**base["layers"], "0": {**base["layers"]["0"], "mlp": {**mlp, **routed, "shared": shared}}}}
        results[slot] = layer(mesh, x, params=params)[0]
    return np.stack([results[slot][token] for token, slot in enumerate(SLOT_OF_TOKEN)])


def with_changes(matrices, tensors, modules, name):
    """gate_up [X, E, 1, 2F] or down [X, 1, F, E] with an adapter in it."""
    parts = ("gate_proj", "up_proj") if name == "gate_up" else ("down_proj",)
    new = np.array(matrices)
    for matrix, module in zip(new, modules, strict=True):
        flat = matrix.reshape(matrix.shape[0] * matrix.shape[1], -1) if name == "down" else matrix[:, 0]
        for part, columns in zip(parts, np.split(flat, len(parts), axis=1), strict=True):
            columns += tensors.change(f"{module}.{part}")
    return new


# Groups of one device and of several, alone and beside one another.
@pytest.mark.parametrize(("devices", "groups"), tiered([(1, 1), (2, 1), (2, 2), (4, 2), (8, 8)], {(1, 1), (2, 1), (4, 2)}))
def test_every_token_has_its_own_adapter_or_none(x, merged, devices, groups):
    mesh = make_mesh(devices // groups, expert=groups)
    got, text = layer(mesh, x, slots_of(mesh))
    np.testing.assert_allclose(got[: len(merged)], merged, atol=2e-4, rtol=0)
    exchanged = [("all-reduce", [x.shape])] if devices > 1 else []
    assert hlo.collectives(text) == exchanged, "what is exchanged without adapters"


def test_an_adapter_changes_what_a_token_gets(x, merged):
    plain, _ = layer(make_mesh(1), x)
    changed = np.abs(merged - plain[: len(merged)]).max(axis=1)
    assert all((change > 0.1) == (slot is not None) for change, slot in zip(changed, SLOT_OF_TOKEN, strict=True))
