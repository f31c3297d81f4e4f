"""Experts on a mesh: whoever has them, each token's are the same, and the devices exchange what a dense MLP's would."""

from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxserve.aot.target import Target
from jaxserve.config.kernels import Kernels, LayerRange
from jaxserve.errors import ConfigError
from jaxserve.executor.experts import ShardedDispatch
from jaxserve.models.binding import abstract_params, bind
from jaxserve.models.dense_attention import dense_attend
from jaxserve.models.experts import Experts, dispatch_all
from jaxserve.models.registry import decoder_config
from jaxserve.weights.abstract import placed_params
from jaxserve.weights.load import load_params
from jaxserve.weights.packed import Packer
from pallas_kernels.matmul import Matrix, Words
from pallas_kernels.quantization import Float8Weight
from pallas_kernels.registry import KernelError
from sharding import make_mesh
from tests.support import hlo
from tests.support.families import hf_config
from tests.support.tiers import tiered

TOKENS = np.array([3, 141, 59, 26, 5, 35, 300, 0, 97, 93, 23, 84, 84, 84, 84, 84], np.int32)
REAL = 12  # of them; the others are padding
CONFIG = decoder_config(hf_config("qwen2_moe"))
COUNT, ACTIVE = 8, 3
BEFORE = 2**32 - 3  # visits, which are counted modulo 2**32


def mesh_of(devices, groups):
    return make_mesh(devices // groups, expert=groups)


def hidden(mesh, tokens=REAL):
    """Final hidden states, visits of the experts, and the compiled program."""
    params = load_params("", CONFIG, mesh, "float32", load_format="dummy", seed=7)

    @jax.jit
    def run(params, ids, real):
        dispatch = ShardedDispatch(mesh, real)
        states = bind(CONFIG, params).hidden(ids, jnp.arange(len(TOKENS)), dense_attend, dispatch)
        return states, dispatch.add_to(jnp.full((1, COUNT), BEFORE, jnp.uint32))

    program = run.lower(params, TOKENS, np.int32(tokens)).compile()
    states, visited = program(params, TOKENS, np.int32(tokens))
    return np.asarray(states), np.asarray(visited) - np.uint32(BEFORE), program.as_text()


@pytest.fixture(scope="module")
def one_device():
    params = load_params("", CONFIG, make_mesh(1), "float32", load_format="dummy", seed=7)
    run = jax.jit(lambda params, ids: bind(CONFIG, params).hidden(ids, jnp.arange(len(TOKENS)), dense_attend))
    return np.asarray(run(params, TOKENS))


# Groups of one device and of several, alone and beside one another.
@pytest.mark.parametrize(("devices", "groups"), tiered([(1, 1), (2, 2), (4, 1), (4, 2), (8, 8)], {(1, 1), (2, 2), (4, 2)}))
def test_the_same_on_every_mesh(one_device, devices, groups):
    states, counts, text = hidden(mesh_of(devices, groups))
    np.testing.assert_allclose(states[:REAL], one_device[:REAL], atol=1e-5, rtol=0)
    assert counts.shape == (1, COUNT)
    assert counts.sum() == REAL * ACTIVE
    exchanged = [("all-reduce", [(len(TOKENS), CONFIG.hidden_size)])] * (2 * CONFIG.num_layers + 1)
    assert hlo.collectives(text) == (exchanged if devices > 1 else [])


def test_padding_visits_nobody(one_device):
    states, counts, _ = hidden(mesh_of(4, 2), tokens=1)
    np.testing.assert_allclose(states[:1], one_device[:1], atol=1e-5, rtol=0)
    assert np.abs(states[2] - one_device[2]).max() > 1e-2  # only the shared expert has seen it
    assert sorted(counts[0]) == [0] * (COUNT - ACTIVE) + [1] * ACTIVE


@pytest.mark.parametrize(
    ("changes", "devices", "groups", "words"),
    [
        ({}, 6, 2, "tensor_parallel_size 6 does not divide num_attention_heads 8 .* sizes that fit this model: 1, 2, 4, 8"),
        ({"num_experts": 6}, 4, 4, "expert_parallel_size 4 does not divide num_experts 6; sizes that fit this model: 1, 2"),
        ({"moe_intermediate_size": 12}, 8, 8, "does not divide moe_intermediate_size 12; sizes that fit this model: 1, 2, 4"),
        ({"shared_expert_intermediate_size": 20}, 8, 1, "does not divide shared_expert_intermediate_size 20"),
        ({"intermediate_size": 20}, 8, 1, "does not divide intermediate_size 20"),
        ({"mlp_only_layers": [0, 1]}, 4, 2, "expert_parallel_size 2: .* has no experts"),
    ],
)
def test_meshes_that_do_not_fit_are_refused_by_name(changes, devices, groups, words):
    config = decoder_config({**hf_config("qwen2_moe"), **changes})
    with pytest.raises(ConfigError, match=words):
        load_params("", config, mesh_of(devices, groups), "float32", load_format="dummy")


def test_dense_layers_alone_have_the_dense_size():
    config = decoder_config({**hf_config("qwen2_moe"), "intermediate_size": 20, "mlp_only_layers": []})
    assert abstract_params(config, "float32", 8)


def test_layers_use_the_kernel_that_they_were_given():
    """Layer 0 alone has experts here."""

    def refused(layers):
        dispatch = ShardedDispatch(make_mesh(1), jnp.int32(REAL), Kernels(grouped_matmul=(layers,)))
        params = abstract_params(CONFIG, "float32")
        jax.eval_shape(
            lambda params: bind(CONFIG, params).hidden(jnp.asarray(TOKENS), jnp.arange(len(TOKENS)), dense_attend, dispatch),
            params,
        )

    refused(LayerRange("abacus", 1, None))
    with pytest.raises(KernelError, match="grouped_matmul has no implementation 'abacus'"):
        refused(LayerRange("abacus", 0, 0))


def test_in_bfloat16_experts_differ_by_rounding_alone():
    """One layer; where the router's scores all but tie, a token may visit another expert."""
    params = load_params("", CONFIG, make_mesh(1), "float32", load_format="dummy", seed=7)
    x = np.random.default_rng(2).normal(size=(64, CONFIG.hidden_size)).astype(np.float32)

    @jax.jit
    def layer(params, x):
        mlp = bind(CONFIG, params).layers["0"].mlp
        assert isinstance(mlp, Experts)
        return mlp(x, dispatch_all)

    exact = np.asarray(layer(params, x))
    rounded = layer(jax.tree.map(lambda array: np.asarray(array).astype("bfloat16"), params), x.astype("bfloat16"))
    assert rounded.dtype == "bfloat16"
    error = np.abs(np.asarray(rounded, np.float32) - exact).max(axis=1)
    assert np.median(error) < 0.02 < np.abs(exact).max(axis=1).min()


@pytest.mark.skipif(find_spec("jax_cuda13_plugin") is None, reason="compiling for GPUs needs jax's CUDA 13 plugin")
def test_several_gpus_sum_once_with_a_shared_expert_that_only_kernels_read():
    """In FP8 by blocks each multiplies by its part of it, within the experts' one sum; traced for two H100s."""
    sizes = {"hidden_size": 256, "moe_intermediate_size": 256, "shared_expert_intermediate_size": 512}
    config = decoder_config({**hf_config("qwen2_moe"), **sizes})
    mesh = make_mesh(2, Target.parse("h100:2").devices())
    shared = ("layers", "0", "mlp", "shared")
    sums = []
    for stored in ((), tuple(((*shared, name), (Float8Weight(128),)) for name in ("gate_up", "down"))):
        params = Packer(config, mesh, "none", stored).shapes(placed_params(config, mesh, "bfloat16"))
        held = params["layers"]["0"]["mlp"]["shared"]["down"]
        assert (isinstance(held, Matrix) and isinstance(held.layout, Words)) == bool(stored)

        @jax.jit
        def run(params, ids):
            return bind(config, params).hidden(ids, jnp.arange(len(TOKENS)), dense_attend, ShardedDispatch(mesh, jnp.int32(REAL)))

        ids = jax.ShapeDtypeStruct(TOKENS.shape, np.int32, sharding=NamedSharding(mesh, PartitionSpec()))
        sums.append(run.lower(params, ids).as_text().count("all_reduce"))
    assert sums[0] == sums[1] > 0
