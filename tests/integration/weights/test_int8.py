"""Matrices rounded to int8 while they are loaded: which, to what, what a model computes with them, and where it is refused."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxserve.errors import CheckpointError, ConfigError
from jaxserve.executor.memory import device_bytes
from jaxserve.models.binding import Params, UsedRows, bind, param_products
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.dense_attention import dense_attend
from jaxserve.models.registry import decoder_config
from jaxserve.weights import packed
from jaxserve.weights.abstract import placed_params
from jaxserve.weights.conversion import Source, convert
from jaxserve.weights.load import load_params
from jaxserve.weights.packed import Packer
from jaxserve.weights.recheck import BlockSums
from pallas_kernels import native
from pallas_kernels.matmul import Panels, pack
from pallas_kernels.native import load
from pallas_kernels.quantization import SCHEMES
from sharding import make_mesh
from tests.golden.reading import DATA, TOLERANCE, read_golden
from tests.support.guarded import found_by_guard
from tests.support.held import is_matrix, plain
from tests.support.schemes import Groups

NATIVE = pytest.mark.skipif(native.missing() is not None, reason=f"NOT CHECKED: native kernels: {native.missing()}")
UNTIED, TIED = "llama-biases", "qwen2-gqa7"
MESH = make_mesh(1)


def decoder_of(name):
    return decoder_config(read_hf_config(DATA / name))


def load_int8(directory, config, dtype="float32", **more):
    return load_params(directory, config, MESH, dtype, packer=Packer(config, MESH, "int8"), **more)


def quantized(params: Params) -> set[str]:
    """The ends of the paths of the matrices that are int8."""
    leaves = jax.tree.leaves_with_path(params, is_leaf=is_matrix)
    return {keys[-1].key for keys, leaf in leaves if is_matrix(leaf) and leaf.scales is not None}


def logits(config, params: Params, tokens) -> np.ndarray:
    @jax.jit
    def run(params: Params, ids: jax.Array) -> jax.Array:
        decoder = bind(config, params)
        return decoder.logits(decoder.hidden(ids, jnp.arange(len(tokens)), dense_attend))

    return np.asarray(run(params, np.array(tokens, np.int32)))[:, : config.vocab_size]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_rounding(dtype):
    """Each column by itself; one of zeros, one too small for a scale, the largest numbers."""
    columns = [[0, 0, 0], [3e-39, 0, 0], [-1e38, 3e38, 1], [127, -127, 63.5], [-2, 1, 0.5], [1e-30, -1e-30, 0]]
    matrix = pack(jnp.asarray(np.array(columns, np.float32).T, dtype), Panels((0,), (3, 6)), SCHEMES["int8"])
    assert matrix.dtype == np.int8
    largest = np.abs(np.asarray(jnp.asarray(np.array(columns), dtype), np.float32)).max(axis=1)
    np.testing.assert_allclose(matrix.scales, np.maximum(largest / 127, 2.0**-126), rtol=1e-6)
    values = np.asarray(matrix.layout.restore(matrix.values)).T
    assert values[0].tolist() == [0, 0, 0]
    assert values[3].tolist() == [127, -127, 64]
    assert values[4].tolist() == [-127, 64, 32]
    assert values[5].tolist() == [127, -127, 0]
    assert values[2, 1] == 127
    assert np.isfinite(plain(matrix)).all()


@NATIVE
@pytest.mark.parametrize(("name", "head"), [(UNTIED, {"kernel"}), (TIED, set())])
def test_matrices_of_products_are_int8_and_the_rest_is_as_it_was(name, head):
    config = decoder_of(name)
    packer = Packer(config, MESH, "int8")
    whole, params = load_params(DATA / name, config, MESH, "bfloat16"), load_int8(DATA / name, config, "bfloat16")
    assert quantized(params) == {"qkv", "out", "gate_up", "down"} | head
    for expected in (
        packer.shapes(placed_params(config, MESH, "bfloat16")),
        load_int8("", config, "bfloat16", load_format="dummy"),
    ):
        structure: Any = jax.tree.structure(expected)
        assert structure == jax.tree.structure(params)
        assert [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(expected)] == [
            (leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(params)
        ]
        assert device_bytes(expected) == device_bytes(params)
    matrices = [leaf for leaf in jax.tree.leaves(params, is_leaf=is_matrix) if is_matrix(leaf) and leaf.scales is not None]
    saved = sum(leaf.values.size - 4 * leaf.scales.size for leaf in matrices)
    assert device_bytes(params) == device_bytes(whole) - saved

    def compare(number: np.ndarray, rounded: np.ndarray) -> None:
        if number.ndim == 1 or rounded.dtype == number.dtype:
            np.testing.assert_array_equal(rounded, number)
        else:
            assert 0 < np.abs(rounded - number.astype(np.float32)).max() < 0.01 * np.abs(number).max()

    jax.tree.map(compare, *(jax.tree.map(np.asarray, each) for each in (whole, plain(params))))


@NATIVE
@pytest.mark.parametrize("name", [UNTIED, TIED, "deepseek-v2-lite", "qwen2-moe-shared", "qwen3-fp8"])
def test_logits_are_those_of_the_rounded_numbers_and_near_transformers(name):
    golden, config = read_golden(name), decoder_of(name)
    params, tokens = load_int8(DATA / name, config), golden.prompts[golden.full_prompt]
    got = logits(config, params, tokens)
    np.testing.assert_allclose(got, logits(config, plain(params), tokens), atol=TOLERANCE, rtol=0)
    assert np.sqrt(np.mean((got - golden.full) ** 2)) < 0.06 * np.std(golden.full)


@NATIVE
def test_padding_is_not_computed():
    golden, config, real = read_golden(UNTIED), decoder_of(UNTIED), 5
    params = load_int8(DATA / UNTIED, config, "bfloat16")
    tokens = np.array(golden.prompts[golden.full_prompt], np.int32)[:real]

    @jax.jit
    def run(params: Params, ids: jax.Array, used: UsedRows | None) -> jax.Array:
        decoder = bind(config, params, used)
        return decoder.logits(decoder.hidden(ids, jnp.arange(ids.shape[0]), dense_attend))

    padded = run(params, np.pad(tokens, (0, 3)), UsedRows(jnp.int32(real), jnp.int32(2)))
    np.testing.assert_array_equal(np.asarray(padded)[:2], np.asarray(run(params, tokens, None))[:2])
    assert (np.asarray(padded)[2:, : config.vocab_size] == 0).all()


@pytest.mark.parametrize(
    ("name", "tensor", "expert"),
    [(UNTIED, 2, 1), (TIED, 2, 1), ("qwen2-moe-shared", 2, 2), pytest.param("qwen3-fp8", 2, 1, marks=pytest.mark.extended)],
)
def test_on_several_devices_matrices_are_the_rounded_ones_divided_as_before(name, tensor, expert):
    """Values as the parameter is, scales as its outputs; loaded, made from a seed and planned alike; all is guarded."""
    config, mesh, sums = decoder_of(name), make_mesh(tensor, expert=expert), BlockSums()
    packer, whole = Packer(config, mesh, "int8"), load_params(DATA / name, config, mesh, "float32")
    params = load_params(DATA / name, config, mesh, "float32", packer=packer, sums=sums)
    assert found_by_guard(params, sums) is None
    products = param_products(config)
    kept = {path for path, product in products.items() if product.looked_up or product.stacked or product.exact}

    def check(keys, leaf, plain):
        path = tuple(key.key for key in keys)
        assert is_matrix(leaf) == (path in products and path not in kept)
        if not is_matrix(leaf):
            return
        assert leaf.values.sharding.is_equivalent_to(plain.sharding, plain.ndim)
        outputs = [size for axis, size in enumerate(plain.sharding.shard_shape(plain.shape)) if axis not in leaf.layout.inputs]
        assert leaf.scales.sharding.shard_shape(leaf.scales.shape) == tuple(outputs)
        numbers = np.asarray(plain, np.float64)
        scales = np.maximum(np.abs(numbers).max(axis=leaf.layout.inputs), 127 * 2.0**-126) / 127
        np.testing.assert_allclose(leaf.scales, scales, rtol=1e-6)
        steps = numbers / np.expand_dims(scales, leaf.layout.inputs)
        assert np.abs(np.asarray(leaf.values) - steps).max() <= 0.5 + 1e-4

    jax.tree.map_with_path(check, params, whole, is_leaf=is_matrix)
    for expected in (
        packer.shapes(placed_params(config, mesh, "float32")),
        load_params("", config, mesh, "float32", load_format="dummy", packer=packer),
    ):
        same = jax.tree.map(lambda a, b: (a.shape, a.dtype, a.sharding) == (b.shape, b.dtype, b.sharding), expected, params)
        assert all(jax.tree.leaves(same))
        assert device_bytes(expected) == device_bytes(params)
    tokens = read_golden(name).prompts[0]
    gathered = jax.tree.map(np.asarray, plain(params))
    np.testing.assert_allclose(logits(config, params, tokens), logits(config, gathered, tokens), atol=TOLERANCE, rtol=0)


def test_a_scheme_is_one_file_and_its_registration(monkeypatch):
    """One that nothing knows: it has zero points, groups of inputs, and a rule of its own for rows."""
    monkeypatch.setattr(packed, "SCHEMES", {**SCHEMES, "groups": Groups()})
    config, mesh, sums = decoder_of(UNTIED), make_mesh(2), BlockSums()
    packer = Packer(config, mesh, "groups")  # type: ignore[arg-type]  # which nothing knows
    params = load_params(DATA / UNTIED, config, mesh, "float32", packer=packer, sums=sums)
    assert found_by_guard(params, sums) is None
    assert device_bytes(packer.shapes(placed_params(config, mesh, "float32"))) == device_bytes(params)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"float32", "uint8"}
    golden = read_golden(UNTIED)
    got = logits(config, params, golden.prompts[golden.full_prompt])
    assert 0 < np.sqrt(np.mean((got - golden.full) ** 2)) < 0.2 * np.std(golden.full)


@NATIVE
def test_orbax_gives_the_same(tmp_path):
    config = decoder_of(UNTIED)
    convert(Source(path=DATA / UNTIED), tmp_path / "orbax", None, lambda done, total: None)
    jax.tree.map(np.testing.assert_array_equal, load_int8(tmp_path / "orbax", config), load_int8(DATA / UNTIED, config))


@NATIVE
def test_weights_that_are_no_numbers_are_named(tmp_path):
    config, name = decoder_of(UNTIED), "model.layers.1.mlp.up_proj.weight"
    arrays = load_file(DATA / UNTIED / "model.safetensors")
    for value in (np.nan, np.inf, -np.inf):
        arrays[name] = arrays[name].copy()
        arrays[name][23, 15] = value
        save_file(arrays, tmp_path / "model.safetensors")
        with pytest.raises(
            CheckpointError, match=rf"NaN or infinite: {name} has 1 in \d+, the first at \[23, 15\]: {value:g} \(in .*\)$"
        ):
            load_int8(tmp_path, config, "bfloat16")


@NATIVE
@pytest.mark.parametrize(("part", "bits"), [("values", np.uint8), ("scales", np.uint32)])
def test_both_parts_are_guarded(part, bits):
    config, sums = decoder_of(UNTIED), BlockSums()
    params = load_int8(DATA / UNTIED, config, sums=sums)
    assert found_by_guard(params, sums) is None
    head = params["head"]["kernel"]
    lost = np.array(getattr(head, part))
    lost.view(bits)[5] ^= 1
    arrays = {"values": head.values, "scales": head.scales, part: jax.device_put(lost, head.values.sharding)}
    params["head"]["kernel"] = replace(head, **arrays)
    error = found_by_guard(params, sums)
    assert error is not None
    assert f"head.kernel.{part}" in error.message


@pytest.mark.parametrize(
    ("devices", "dtype", "missing", "reason"),
    [
        (2, "float16", None, "bfloat16 or float32, not float16"),
        (1, "float16", None, "native kernels: rows and matrix must be bfloat16 or float32, not float16"),
        (1, "float32", "the library is not built", "native kernels: the library is not built"),
    ],
)
def test_what_cannot_be_is_refused(monkeypatch, devices, dtype, missing, reason):
    monkeypatch.setattr(load, "missing", lambda: missing)
    config, mesh = decoder_of(UNTIED), make_mesh(devices)
    with pytest.raises(ConfigError, match=f"^quantization 'int8' needs {reason}$") as caught:
        Packer(config, mesh, "int8").shapes(placed_params(config, mesh, dtype))
    assert caught.value.param == "quantization"
