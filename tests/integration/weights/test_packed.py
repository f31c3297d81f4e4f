"""Parameters packed for native kernels: which are, that only their order changes, and what the decoder computes with them."""

from dataclasses import replace
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.executor.experts import ShardedDispatch
from jaxserve.executor.memory import device_bytes
from jaxserve.models.attention import Attention
from jaxserve.models.binding import Params, UsedRows, abstract_params, bind
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.dense_attention import dense_attend
from jaxserve.models.parameter import COLUMNS
from jaxserve.models.registry import decoder_config
from jaxserve.weights.abstract import placed_params
from jaxserve.weights.load import load_params
from jaxserve.weights.packed import Packer
from jaxserve.weights.recheck import BlockSums
from pallas_kernels import native
from pallas_kernels.matmul import Matrix, matmul
from pallas_kernels.native import load
from sharding import make_mesh
from tests.golden.reading import DATA, TOLERANCE, read_golden
from tests.support.guarded import found_by_guard
from tests.support.held import plain as numbers_of
from tests.support.tiers import tiered

NATIVE = pytest.mark.skipif(native.missing() is not None, reason=f"NOT CHECKED: native kernels: {native.missing()}")
UNTIED, TIED = "llama-biases", "qwen2-gqa7"


def decoder_of(name):
    return decoder_config(read_hf_config(DATA / name))


def packed_leaves(params: Params) -> dict[str, str]:
    """The layout of each packed parameter, by the end of its path."""
    leaves = jax.tree.leaves_with_path(params, is_leaf=lambda leaf: isinstance(leaf, Matrix))
    return {keys[-1].key: leaf.layout.name for keys, leaf in leaves if isinstance(leaf, Matrix)}


@NATIVE
@pytest.mark.parametrize(
    ("name", "dtype"), tiered(product((UNTIED, TIED), ("bfloat16", "float32")), {(UNTIED, "bfloat16"), (TIED, "float32")})
)
def test_projections_and_logits_are_packed_and_nothing_is_lost(name, dtype):
    more = {"kernel": "panels"} if name == UNTIED else {"table": "rows"}
    config, mesh = decoder_of(name), make_mesh(1)
    packer = Packer(config, mesh)
    plain = load_params(DATA / name, config, mesh, dtype)
    packed = load_params(DATA / name, config, mesh, dtype, packer=packer)
    assert packed_leaves(packed) == {"qkv": "panels", "out": "panels", "gate_up": "panels", "down": "panels"} | more
    shapes = packer.shapes(placed_params(config, mesh, dtype))
    structure: Any = jax.tree.structure(shapes)
    assert structure == jax.tree.structure(packed)
    assert [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(shapes)] == [
        (leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(packed)
    ]
    assert device_bytes(shapes) == device_bytes(packed) == device_bytes(plain)
    jax.tree.map(np.testing.assert_array_equal, numbers_of(packed), plain)


@pytest.mark.parametrize(("devices", "dtype", "reason"), [(2, "float32", None), (1, "float16", None), (1, "float32", "none")])
def test_what_stays_plain(monkeypatch, devices, dtype, reason):
    """On several devices, in dtypes that native kernels do not have, and without these."""
    monkeypatch.setattr(load, "missing", lambda: reason)
    config, mesh = decoder_of(UNTIED), make_mesh(devices)
    params = placed_params(config, mesh, dtype)
    assert Packer(config, mesh).shapes(params) == params


@NATIVE
# Of the two without experts one, and the other below.
@pytest.mark.parametrize(
    "name", tiered([UNTIED, TIED, "deepseek-v2-lite", "qwen2-moe-shared"], {UNTIED, "deepseek-v2-lite", "qwen2-moe-shared"})
)
def test_logits_of_packed_weights(name):
    golden, config, mesh = read_golden(name), decoder_of(name), make_mesh(1)
    params = load_params(DATA / name, config, mesh, "float32", packer=Packer(config, mesh))
    tokens = np.array(golden.prompts[golden.full_prompt], np.int32)

    @jax.jit
    def run(params: Params, ids: jax.Array) -> jax.Array:
        decoder = bind(config, params)
        return decoder.logits(decoder.hidden(ids, jnp.arange(len(tokens)), dense_attend))

    logits = np.asarray(run(params, tokens))[:, : config.vocab_size]
    np.testing.assert_allclose(logits, golden.full, atol=TOLERANCE, rtol=0)


@NATIVE
@pytest.mark.parametrize("name", tiered([UNTIED, TIED, "qwen2-moe-shared"], {TIED, "qwen2-moe-shared"}))
def test_padding_is_not_computed(name):
    """Real tokens come out as without padding, bit for bit; what follows them is finite, and logits of no row are 0."""
    golden, config, mesh, real = read_golden(name), decoder_of(name), make_mesh(1), 5
    params = load_params(DATA / name, config, mesh, "bfloat16", packer=Packer(config, mesh))
    tokens = np.array(golden.prompts[golden.full_prompt], np.int32)[:real]

    @jax.jit
    def run(params: Params, ids: jax.Array, used: UsedRows | None) -> tuple[jax.Array, jax.Array, jax.Array]:
        decoder = bind(config, params, used)
        dispatch = ShardedDispatch(mesh, jnp.int32(real))
        hidden = decoder.hidden(ids, jnp.arange(ids.shape[0]), dense_attend, dispatch)
        attention = decoder.layers["0"].attention
        assert isinstance(attention, Attention)
        return hidden, decoder.logits(hidden), matmul(hidden, COLUMNS.matrix(attention.qkv))

    hidden, logits, _ = run(params, tokens, None)
    padded, padded_logits, product = run(params, np.pad(tokens, (0, 3)), UsedRows(jnp.int32(real), jnp.int32(2)))
    np.testing.assert_array_equal(np.asarray(padded)[:real], hidden)
    np.testing.assert_array_equal(np.asarray(padded_logits)[:2], np.asarray(logits)[:2])
    assert np.isfinite(np.float32(padded)).all()
    assert (np.asarray(product)[real:] == 0).all()
    assert np.asarray(product)[:real].all(axis=-1).any()
    assert (np.asarray(padded_logits)[2:, : config.vocab_size] == 0).all()


@NATIVE
def test_every_projection_is_one_native_call():
    config, mesh = decoder_of(UNTIED), make_mesh(1)
    params = Packer(config, mesh).shapes(abstract_params(config, "bfloat16"))

    def run(params: Params, ids: jax.Array) -> jax.Array:
        decoder = bind(config, params)
        return decoder.logits(decoder.hidden(ids, jnp.arange(4), dense_attend))

    text = jax.jit(run).lower(params, jax.ShapeDtypeStruct((4,), jnp.int32)).as_text()
    assert text.count(native.target_name("Matmul")) == 4 * config.num_layers + 1


@NATIVE
def test_packed_weights_are_guarded():
    config, mesh, sums = decoder_of(UNTIED), make_mesh(1), BlockSums()
    params = load_params(DATA / UNTIED, config, mesh, "bfloat16", sums=sums, packer=Packer(config, mesh))
    assert found_by_guard(params, sums) is None
    head = params["head"]["kernel"]
    values = np.array(head.values)
    values.view(np.uint16)[5] ^= 1
    params["head"]["kernel"] = replace(head, values=jax.device_put(values, head.values.sharding))
    error = found_by_guard(params, sums)
    assert error is not None
    assert "head.kernel.values" in error.message
