"""Experts' matrices as parameters: each in its place on every mesh, read by the devices that have it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxserve.models.registry import decoder_config, weight_rules
from jaxserve.models.rules import Packing, Source, WeightRule
from jaxserve.weights.load import load_params
from jaxserve.weights.packing import read_block
from sharding import make_mesh
from tests.support.families import hf_config

CONFIG = decoder_config(hf_config("qwen2_moe"))
EMBED, COUNT, FFN = 32, 8, 16
RNG = np.random.default_rng(3)


class Arrays:
    """Tensors in memory, and the names of those that were read."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = arrays
        self.names: set[str] = set()

    def read(self, name: str, bounds: tuple[tuple[int, int], ...]) -> np.ndarray:
        self.names.add(name)
        return self.arrays[name][tuple(slice(*each) for each in bounds)]


@pytest.mark.parametrize(("devices", "groups"), [(1, 1), (8, 2), (4, 4)])
def test_every_expert_is_in_its_place(tmp_path, devices, groups):
    sources = [source for rule in weight_rules(CONFIG) for source in rule.sources]
    arrays = {source.name: RNG.normal(size=source.stored_shape).astype(np.float32) for source in sources}
    save_file(arrays, tmp_path / "model.safetensors")
    params = load_params(tmp_path, CONFIG, make_mesh(devices // groups, expert=groups), "float32")
    mlp, prefix = params["layers"]["0"]["mlp"], "model.layers.0.mlp"
    np.testing.assert_array_equal(mlp["router"], arrays[f"{prefix}.gate.weight"].T)
    np.testing.assert_array_equal(mlp["shared_gate"], arrays[f"{prefix}.shared_expert_gate.weight"].T)
    for j in range(COUNT):
        gate, up, down = (arrays[f"{prefix}.experts.{j}.{name}_proj.weight"] for name in ("gate", "up", "down"))
        for s in range(devices):
            part = slice(s * FFN // devices, (s + 1) * FFN // devices)
            np.testing.assert_array_equal(mlp["gate_up"][j, :, s], np.concatenate([gate[part], up[part]]).T)
            np.testing.assert_array_equal(mlp["down"][j, s], down[:, part].T)
    on_one = mlp["gate_up"].addressable_shards[-1]
    assert on_one.data.shape == (COUNT // groups, EMBED, groups, 2 * FFN // devices)


def test_a_device_reads_its_own_experts_alone():
    (rule,) = [rule for rule in weight_rules(CONFIG) if rule.path == ("layers", "0", "mlp", "gate_up")]
    arrays = Arrays({source.name: RNG.normal(size=source.shape).astype(np.float32) for source in rule.sources})
    here = (slice(2, 4), slice(None), slice(4, 8), slice(None))
    read_block(arrays, rule, (COUNT, EMBED, 8, 2 * FFN // 8), here, "float32")
    assert arrays.names == {f"model.layers.0.mlp.experts.{j}.{name}_proj.weight" for j in (2, 3) for name in ("gate", "up")}


def test_matrices_of_one_stack():
    """All experts in one tensor, [in, out], gate and up in alternate columns; and a bias each."""
    stack, biases = RNG.normal(size=(3, 4, 12)).astype(np.float32), RNG.normal(size=(3, 12)).astype(np.float32)
    parts = [(expert, first) for expert in range(3) for first in range(2)]
    options: dict[str, Any] = {"rows": 12, "row_step": 2, "experts": 3}
    matrices = [Source("stack", (6, 4), None, first, transposed=True, expert=e, **options) for e, first in parts]
    vectors = [Source("biases", (6,), None, first, expert=e, **options) for e, first in parts]
    assert {source.stored_shape for source in matrices} == {stack.shape}
    assert {source.stored_shape for source in vectors} == {biases.shape}
    arrays = Arrays({"stack": stack, "biases": biases})

    def block(sources, *shape):
        rule = WeightRule(("x",), tuple(sources), Packing.COLUMNS, 3)
        return read_block(arrays, rule, shape, (slice(None),) * len(shape), "float32")

    for expert in range(3):
        for s in range(2):
            columns = [*range(6 * s, 6 * s + 6, 2), *range(6 * s + 1, 6 * s + 6, 2)]
            np.testing.assert_array_equal(block(matrices, 3, 4, 2, 6)[expert, :, s], stack[expert][:, columns])
            np.testing.assert_array_equal(block(vectors, 3, 2, 6)[expert, s], biases[expert][columns])


def test_dummy_experts_differ_and_do_not_depend_on_the_mesh():
    one, several = (
        load_params("", CONFIG, mesh, "float32", load_format="dummy") for mesh in (make_mesh(1), make_mesh(2, expert=2))
    )
    experts, divided = (np.asarray(params["layers"]["0"]["mlp"]["gate_up"]) for params in (one, several))
    assert len(np.unique(experts[:, 0, 0, 0])) == COUNT
    gate, up = np.split(experts[:, :, 0], 2, axis=-1)
    np.testing.assert_array_equal(divided[:, :, 1], np.concatenate([gate[..., 4:8], up[..., 4:8]], axis=-1))
