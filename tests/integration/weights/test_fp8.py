"""Matrices in FP8 on several devices: rounded while they are loaded, or held as a checkpoint has them; where they are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from safetensors.numpy import save_file

from jaxserve.errors import CheckpointError, ConfigError
from jaxserve.executor.memory import device_bytes
from jaxserve.models.binding import Params, bind, param_products
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.dense_attention import dense_attend
from jaxserve.models.registry import decoder_config
from jaxserve.weights.abstract import placed_params
from jaxserve.weights.checkpoint import whole
from jaxserve.weights.load import load_params
from jaxserve.weights.packed import Packer
from jaxserve.weights.recheck import BlockSums
from jaxserve.weights.safetensors import SafetensorsCheckpoint
from jaxserve.weights.stored_schemes import stored_schemes
from pallas_kernels.matmul import Layout, Matrix
from pallas_kernels.quantization import FP8, FP8Blocks
from pallas_kernels.registry import Target
from sharding import make_mesh
from tests.golden.reading import DATA, read_golden
from tests.support.guarded import found_by_guard
from tests.support.held import is_matrix, plain
from tests.support.schemes import RoundedRows
from tests.support.tiers import tiered

CHANNELS, UNTIED, EXPERTS, BLOCKS = "mistral-fp8-channels", "llama-biases", "qwen2-moe-shared", "qwen3-fp8"
PROJECTIONS = {"qkv", "out", "gate_up", "down"}


@pytest.fixture(scope="module")
def rounding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint in FP8, with a configuration that asks for activations to be rounded, too."""
    directory = tmp_path_factory.mktemp("rounding") / CHANNELS
    shutil.copytree(DATA / CHANNELS, directory)
    hf = read_hf_config(directory)
    hf["quantization_config"]["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8, "type": "float", "dynamic": True}
    (directory / "config.json").write_text(json.dumps(hf))
    return directory


def tensors_of(directory: Path) -> dict[str, np.ndarray]:
    with SafetensorsCheckpoint(directory) as checkpoint:
        return {name: checkpoint.read(name, whole(shape)) for name, shape in checkpoint.shapes.items()}


def packer_of(directory: Path, devices: int = 2, quantization: Any = "none", expert: int = 1) -> Packer:
    config = decoder_config(read_hf_config(directory))
    mesh = make_mesh(devices, expert=expert)
    return Packer(config, mesh, quantization, stored_schemes(directory, config, "auto"))


def loaded(
    directory: Path, devices: int = 2, quantization: Any = "none", dtype: str = "float32", expert: int = 1, **more: Any
) -> Params:
    packer = packer_of(directory, devices, quantization, expert)
    return load_params(
        directory, decoder_config(read_hf_config(directory)), make_mesh(devices, expert=expert), dtype, packer=packer, **more
    )


def matrices(params: Params) -> dict[str, Matrix]:
    """Those in FP8, by path."""
    leaves = jax.tree.leaves_with_path(params, is_leaf=is_matrix)
    named = {jax.tree_util.keystr(keys, simple=True, separator="."): leaf for keys, leaf in leaves}
    return {name: leaf for name, leaf in named.items() if is_matrix(leaf) and isinstance(leaf.scheme, FP8)}


def logits(directory: Path, params: Params, tokens: Any) -> np.ndarray:
    config = decoder_config(read_hf_config(directory))

    @jax.jit
    def run(params: Params, ids: jax.Array) -> jax.Array:
        decoder = bind(config, params)
        return decoder.logits(decoder.hidden(ids, jnp.arange(len(tokens)), dense_attend))

    return np.asarray(run(params, np.array(tokens, np.int32)))[:, : config.vocab_size]


def with_rounded_rows(directory: Path, params: Params) -> Params:
    """The same numbers in float32 on one device, multiplied by rows that numpy rounds."""
    products = param_products(decoder_config(read_hf_config(directory)))

    def wide(keys: Any, leaf: Any) -> Any:
        if not is_matrix(leaf):
            return np.asarray(leaf)
        layout = Layout(products[tuple(key.key for key in keys)].inputs)
        return Matrix(jax.device_put(np.asarray(plain(leaf))), None, layout, RoundedRows())

    shown: Params = jax.tree.map_with_path(wide, params, is_leaf=is_matrix)
    return shown


@pytest.mark.parametrize(
    ("name", "quantization", "devices", "expert"),
    [
        (CHANNELS, "none", 2, 1),
        pytest.param(CHANNELS, "fp8", 2, 1, marks=pytest.mark.extended),  # the same numbers, which the next test compares
        (UNTIED, "fp8", 2, 1),
        (EXPERTS, "fp8", 2, 2),
        (BLOCKS, "fp8", 2, 1),
    ],
)
def test_logits_are_those_of_rounded_rows_and_the_same_numbers(rounding, name, quantization, devices, expert):
    """A checkpoint's own numbers where it has them; near what transformers computes without rounding rows."""
    golden, directory = read_golden(name), rounding if name == CHANNELS else DATA / name
    params = loaded(directory, devices, quantization, expert=expert)
    assert {path.rpartition(".")[2] for path in matrices(params)} == PROJECTIONS
    tokens = golden.prompts[golden.full_prompt]
    got = logits(directory, params, tokens)
    off = np.abs(got - logits(directory, with_rounded_rows(directory, params), tokens)).max(axis=1)
    # A sum that differs in its last bit may be rounded to FP8's next number, which later tokens then see.
    assert (off < 1e-3).mean() >= (1.0 if name == CHANNELS else 0.7)
    assert 0 < np.sqrt(np.mean((got - golden.full) ** 2)) < 0.3 * np.std(golden.full)


@pytest.mark.parametrize("quantization", ["none", "fp8"])
def test_a_checkpoints_numbers_are_its_own_a_byte_each(rounding, quantization):
    directory, sums = rounding, BlockSums()
    params = loaded(directory, quantization=quantization, sums=sums)
    assert found_by_guard(params, sums) is None
    plain_params = load_params(directory, decoder_config(read_hf_config(directory)), make_mesh(2), "float32")
    held = matrices(params)
    assert len(held) == 4 * 2
    for path, matrix in held.items():
        exact: Any = plain_params
        for key in path.split("."):
            exact = exact[key]
        assert matrix.dtype == ml_dtypes.float8_e4m3fn
        np.testing.assert_array_equal(plain(matrix), exact)
        assert matrix.values.sharding.num_devices == 2
        assert matrix.values.sharding.shard_shape(matrix.values.shape) == matrix.layout.arranged_shape(
            exact.sharding.shard_shape(exact.shape)
        )
    stored = sum(matrix.values.size // 2 for matrix in held.values())
    scales = sum(np.prod(matrix.scales.sharding.shard_shape(matrix.scales.shape)) for matrix in held.values())
    assert device_bytes(params) == device_bytes(plain_params) - 3 * stored + 4 * scales


def test_activations_are_rounded_only_where_the_checkpoint_or_the_user_asks():
    """Elsewhere the logits are those of transformers, which rounds none."""
    golden, directory = read_golden(CHANNELS), DATA / CHANNELS
    params = loaded(directory)
    assert not any(map(is_matrix, jax.tree.leaves(params, is_leaf=is_matrix)))
    tokens = golden.prompts[golden.full_prompt]
    np.testing.assert_allclose(logits(directory, params, tokens), golden.full, rtol=0, atol=1e-3)
    assert matrices(loaded(directory, quantization="fp8"))


@pytest.mark.parametrize("name", tiered([BLOCKS, "deepseek-v3-fp8", "deepseek-v32-fp8"], {BLOCKS, "deepseek-v32-fp8"}))
def test_blocks_are_held_a_byte_a_number_too(name):
    """With the factor of its block for each output; activations are not rounded, so that logits are transformers' own.

    Also beside a matrix that is one block in the direction of its inputs (of the last one's shared experts).
    """
    golden, directory, sums = read_golden(name), DATA / name, BlockSums()
    params = loaded(directory, sums=sums)
    assert found_by_guard(params, sums) is None
    plain_params = load_params(directory, decoder_config(read_hf_config(directory)), make_mesh(2), "float32")
    held = [leaf for leaf in jax.tree.leaves(params, is_leaf=is_matrix) if is_matrix(leaf)]
    assert {(leaf.scheme, leaf.dtype.name) for leaf in held} == {(FP8Blocks(16), "float8_e4m3fn")}
    assert len(held) >= 4 * 2
    jax.tree.map(np.testing.assert_array_equal, plain(params), plain_params)
    tokens = golden.prompts[golden.full_prompt]
    np.testing.assert_allclose(logits(directory, params, tokens), golden.full, rtol=0, atol=1e-3)
    shapes = packer_of(directory).shapes(placed_params(decoder_config(read_hf_config(directory)), make_mesh(2), "float32"))
    assert device_bytes(shapes) == device_bytes(params) < device_bytes(plain_params)
    assert not any(map(is_matrix, jax.tree.leaves(loaded(directory, dtype="float16"), is_leaf=is_matrix)))


def test_each_projection_of_a_fused_parameter_has_its_own_factor(tmp_path):
    """Of FP8 with one for a matrix, and with an input_scale, which is not used: rows have steps of their own."""
    rng, tensors = np.random.default_rng(0), tensors_of(DATA / CHANNELS)
    for name in [name for name in tensors if name.endswith(".weight_scale")]:
        tensors[name] = np.full((), rng.uniform(0.001, 0.01), np.float32)
        tensors[name.replace("weight_scale", "input_scale")] = np.full((), 0.5, np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    hf = json.loads((DATA / CHANNELS / "config.json").read_text())
    for method in ({"quant_method": "fp8", "activation_scheme": "static"}, {"quant_method": "modelopt", "quant_algo": "FP8"}):
        (tmp_path / "config.json").write_text(json.dumps(hf | {"quantization_config": method}))
        params = loaded(tmp_path)
        packed = params["layers"]["0"]["attention"]["qkv"]
        own = [tensors[f"model.layers.0.self_attn.{name}_proj.weight_scale"] for name in "qkv"]
        wanted = np.repeat(own, [32, 16, 16])  # a device's outputs: two heads of queries, one each of keys and values
        np.testing.assert_array_equal(packed.scales, np.tile(wanted, (2, 1)))
        exact = load_params(tmp_path, decoder_config(read_hf_config(tmp_path)), make_mesh(2), "float32")
        np.testing.assert_array_equal(plain(packed), exact["layers"]["0"]["attention"]["qkv"])


@pytest.mark.parametrize("name", [CHANNELS, UNTIED])
def test_what_is_planned_made_from_a_seed_and_loaded_is_alike(name):
    packer, config = packer_of(DATA / name, quantization="fp8"), decoder_config(read_hf_config(DATA / name))
    params = loaded(DATA / name, quantization="fp8", dtype="bfloat16")
    for expected in (
        packer.shapes(placed_params(config, make_mesh(2), "bfloat16")),
        load_params("", config, make_mesh(2), "bfloat16", load_format="dummy", packer=packer),
    ):
        same = jax.tree.map(lambda a, b: (a.shape, a.dtype, a.sharding) == (b.shape, b.dtype, b.sharding), expected, params)
        assert all(jax.tree.leaves(same))
        assert device_bytes(expected) == device_bytes(params)


def test_numbers_that_are_none_are_named(tmp_path):
    tensors = tensors_of(DATA / CHANNELS)
    (tmp_path / "config.json").write_bytes((DATA / CHANNELS / "config.json").read_bytes())
    name, factors = (f"model.layers.1.mlp.up_proj.weight{end}" for end in ("", "_scale"))
    broken = tensors[name].copy()
    broken.view(np.uint8)[23, 15] = 0xFF
    save_file(tensors | {name: broken}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"NaN or infinite: {name} has 1 in 2048, the first at \[23, 15\]: nan \(in .*\)$"):
        loaded(tmp_path)
    for value in (np.nan, np.inf, 0.0):
        scales = tensors[factors].copy()
        scales[3, 0] = value
        save_file(tensors | {factors: scales}, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=rf"{factors} has 1 factors that are NaN, .* \[3, 0\]: {value:g} \(in .*\)$"):
            loaded(tmp_path)


@pytest.mark.parametrize(
    ("devices", "dtype", "reason"),
    [
        (2, "float16", "bfloat16 or float32, not float16"),
        (1, "bfloat16", r"GPUs of compute capability 8\.9 or later, or several devices"),
    ],
)
def test_what_cannot_be_is_refused(rounding, devices, dtype, reason):
    """On one CPU device, too: there a checkpoint is dequantized, as in float16."""
    config, mesh = decoder_config(read_hf_config(DATA / UNTIED)), make_mesh(devices)
    with pytest.raises(ConfigError, match=f"^quantization 'fp8' needs {reason}$") as caught:
        Packer(config, mesh, "fp8").shapes(placed_params(config, mesh, dtype))
    assert caught.value.param == "quantization"
    assert matrices(loaded(rounding, devices, dtype=dtype)) == {}


def test_gpus_that_do_not_multiply_fp8_dequantize_and_refuse(rounding):
    packer = packer_of(rounding)
    leaf = jax.ShapeDtypeStruct((32, 2, 64), jnp.bfloat16, sharding=NamedSharding(make_mesh(2), PartitionSpec()))
    assert packer.holds_stored(("layers", "0", "attention", "qkv"), leaf)
    packer._target = Target("gpu", (8, 0))
    assert not packer.holds_stored(("layers", "0", "attention", "qkv"), leaf)
    asked = packer_of(DATA / UNTIED, quantization="fp8")
    asked._target = Target("gpu", (8, 0))
    with pytest.raises(ConfigError, match=r"8\.9 or later, not gpu of compute capability 8\.0"):
        asked.matrix(("layers", "0", "attention", "qkv"), leaf)
