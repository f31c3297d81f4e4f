"""Matrices of quantized checkpoints that keep their size: which, that they are the same numbers, and what they take."""

import json
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.errors import CheckpointError, ConfigError
from jaxserve.executor.memory import device_bytes
from jaxserve.models.binding import Params, bind
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.config import DecoderConfig
from jaxserve.models.dense_attention import dense_attend
from jaxserve.models.registry import decoder_config
from jaxserve.weights.load import load_params
from jaxserve.weights.recheck import BlockSums
from pallas_kernels import native
from pallas_kernels.matmul import CodePanels
from pallas_kernels.native import load
from pallas_kernels.quantization import w8a8
from sharding import make_mesh
from tests.golden.reading import DATA, read_golden
from tests.support.guarded import found_by_guard
from tests.support.held import dequantized, is_matrix, loaded, on_hopper, plain, schemes
from tests.support.stored_formats import FORMATS, FP8_BLOCKS, GPTQ_METHOD, GROUP, LLAMA, awq, float8, gptq, write
from tests.support.tiers import tiered


def logits(config: DecoderConfig, params: Params, tokens: Sequence[int]) -> np.ndarray:
    @jax.jit
    def run(params: Params, ids: jax.Array) -> jax.Array:
        decoder = bind(config, params)
        return decoder.logits(decoder.hidden(ids, jnp.arange(len(tokens)), dense_attend))

    return np.asarray(run(params, np.array(tokens, np.int32)))[:, : config.vocab_size]


pytestmark = pytest.mark.skipif(native.missing() is not None, reason=f"NOT CHECKED: native kernels: {native.missing()}")


@pytest.mark.parametrize("name", ["int8", "packed int8"])
def test_int8_is_held_on_several_devices_too(tmp_path, name):
    """The same numbers as dequantized, and bytes as the shapes say; in float16, which int8 is not for, they are dequantized."""
    method, quantized, scheme = FORMATS[name]
    directory, sums = write(tmp_path / name, method, quantized), BlockSums()
    held = loaded(directory, devices=2, sums=sums)
    assert found_by_guard(held.params, sums) is None
    matrices = [leaf for leaf in jax.tree.leaves(held.params, is_leaf=is_matrix) if is_matrix(leaf)]
    assert [matrix.scheme for matrix in matrices] == [scheme] * 4 * 2
    assert {matrix.layout.name for matrix in matrices} == {"plain"}
    whole = load_params(directory, decoder_config(LLAMA), make_mesh(2), "float32")
    jax.tree.map(np.testing.assert_array_equal, plain(held.params), whole)
    assert device_bytes(held.params) == device_bytes(held.shapes) < 0.5 * device_bytes(whole)
    assert schemes(loaded(directory, "float16", devices=2).params) == set()


@pytest.mark.parametrize("name", list(FORMATS))
def test_each_format_is_held_and_stands_for_the_same_numbers(tmp_path, name):
    method, quantized, scheme = FORMATS[name]
    directory = write(tmp_path / name, method, quantized)
    held = loaded(directory)
    matrices = [leaf for leaf in jax.tree.leaves(held.params, is_leaf=is_matrix) if is_matrix(leaf) and leaf.scales is not None]
    assert len(matrices) == 4 * 2  # of two layers
    assert {matrix.scheme for matrix in matrices} == {scheme}
    jax.tree.map(np.testing.assert_array_equal, plain(held.params), dequantized(directory))
    tokens, config = range(7), decoder_config(LLAMA)
    np.testing.assert_allclose(logits(config, held.params, tokens), logits(config, plain(held.params), tokens), rtol=0, atol=1e-3)


# One of each scheme: the others' experts are in test_held_experts.
@pytest.mark.parametrize("name", tiered(["awq", "gptq", "int8", "packed int8", "fp8 blocks"], {"gptq", "int8", "fp8 blocks"}))
def test_a_hopper_holds_words_of_the_same_numbers(tmp_path, monkeypatch, name):
    on_hopper(monkeypatch)
    method, quantized, scheme = (FORMATS | {"fp8 blocks": FP8_BLOCKS})[name]
    directory = write(tmp_path / name, method, quantized, LLAMA | {"hidden_size": 256, "intermediate_size": 256})
    held = loaded(directory, "bfloat16")
    matrices = [leaf for leaf in jax.tree.leaves(held.params, is_leaf=is_matrix) if is_matrix(leaf)]
    assert [(matrix.scheme, matrix.layout.name) for matrix in matrices] == [(scheme, "words")] * (4 * 2)
    exact = dequantized(directory)
    for layer, parts in held.params["layers"].items():
        for block, leaves in parts.items():
            for leaf, matrix in leaves.items():
                if is_matrix(matrix):
                    np.testing.assert_array_equal(plain(matrix), exact["layers"][layer][block][leaf])
    assert device_bytes(held.params) == device_bytes(held.shapes)


def test_float8_that_is_no_number_is_refused(tmp_path, monkeypatch):
    def broken(rng: np.random.Generator, outputs: int, inputs: int) -> dict[str, np.ndarray]:
        tensors = FP8_BLOCKS[1](rng, outputs, inputs)
        tensors["weight"][3, 100] = np.nan
        return tensors

    on_hopper(monkeypatch)
    directory = write(tmp_path / "fp8", FP8_BLOCKS[0], broken, LLAMA | {"hidden_size": 256, "intermediate_size": 256})
    with pytest.raises(CheckpointError, match=r"q_proj.weight.* \[3, 100\].*nan"):
        loaded(directory, "bfloat16")


@pytest.mark.parametrize(
    ("name", "most"), [("llama-w4a16", 0.65), ("qwen2-int8", 0.75), ("qwen3-fp8", 0.75), ("mistral-fp8-channels", 0.75)]
)
def test_memory_is_the_checkpoints(name, most):
    """As much as the shapes say; in bfloat16, tables and norms are the rest of these tiny ones."""
    held = loaded(DATA / name, "bfloat16")
    assert device_bytes(held.params) == device_bytes(held.shapes)
    assert device_bytes(held.params) < most * device_bytes(dequantized(DATA / name, "bfloat16"))
    described: Any = jax.tree.structure(held.shapes)
    assert described == jax.tree.structure(held.params)


NATIVE = ("llama-w4a16", "qwen2-int8", "qwen3-fp8", "deepseek-v3-fp8", "mistral-fp8-channels")


@pytest.mark.parametrize(("name", "devices"), [*((name, 1) for name in NATIVE), ("qwen2-int8", 2)])
def test_logits_are_transformers_own(name, devices):
    golden, config = read_golden(name), decoder_config(read_hf_config(DATA / name))
    got = logits(config, loaded(DATA / name, devices=devices).params, golden.prompts[golden.full_prompt])
    np.testing.assert_allclose(got, golden.full, rtol=0, atol=1e-3)


def test_int8_is_not_rounded_again_where_activations_are():
    """The checkpoint's own numbers, multiplied by rounded rows."""
    held, weights_only = loaded(DATA / "qwen2-int8", quantization="w8a8").params, loaded(DATA / "qwen2-int8").params
    assert schemes(held) == {"none", "w8a8"}
    jax.tree.map(np.testing.assert_array_equal, plain(held), plain(weights_only))
    golden, config = read_golden("qwen2-int8"), decoder_config(read_hf_config(DATA / "qwen2-int8"))
    got = logits(config, held, golden.prompts[golden.full_prompt])
    assert 0 < np.sqrt(np.mean((got - golden.full) ** 2)) < 0.06 * np.std(golden.full)


@pytest.mark.parametrize(
    ("more", "held"), [({"devices": 2}, set()), ({"quantization": "int8"}, {"int8"}), ({"quantization": "w8a8"}, {"w8a8"})]
)
def test_what_is_dequantized(more, held):
    """On several devices; and where matrices are to be rounded to something else."""
    params = loaded(DATA / "llama-w4a16", **more).params
    assert schemes(params) - {"none"} == held


def test_without_native_kernels_all_is_dequantized(monkeypatch):
    monkeypatch.setattr(load, "missing", lambda: "the library is not built")
    assert schemes(loaded(DATA / "llama-w4a16").params) == set()


def test_what_a_scheme_cannot_multiply_is_not_held(monkeypatch):
    """As many inputs as leave an int32: those matrices stay plain, before anything is loaded."""
    monkeypatch.setattr(w8a8, "MOST_INPUTS", 1)
    assert schemes(loaded(DATA / "qwen2-int8", quantization="w8a8").params) == {"none"}


def test_gptq_groups_in_an_order_of_their_own_are_dequantized_or_refused(tmp_path):
    def shuffled(rng: np.random.Generator, outputs: int, inputs: int) -> dict[str, np.ndarray]:
        return gptq(rng, outputs, inputs) | {"g_idx": (np.arange(inputs)[::-1] // GROUP).astype(np.int32)}

    directory = write(tmp_path / "ordered", GPTQ_METHOD | {"desc_act": True}, shuffled)
    assert schemes(loaded(directory).params) == {"none"}
    directory = write(tmp_path / "said not", GPTQ_METHOD, shuffled)
    with pytest.raises(CheckpointError, match=r"q_proj.g_idx has an order .* is false \(in .*said not/model.safetensors\)"):
        loaded(directory)


def test_factors_that_are_none_are_refused(tmp_path):
    def broken(rng: np.random.Generator, outputs: int, inputs: int) -> dict[str, np.ndarray]:
        tensors = awq(rng, outputs, inputs)
        tensors["scales"][1, 5] = np.nan
        return tensors

    said = r"q_proj.scales has 1 factors that are NaN, infinite or 0, .* block \[5, 1\]: nan \(in .*/awq/model.safetensors\)"
    with pytest.raises(CheckpointError, match=said):
        loaded(write(tmp_path / "awq", FORMATS["awq"][0], broken))


def test_what_is_missing_is_told_with_the_file_of_what_needs_it(tmp_path):
    def without(rng: np.random.Generator, outputs: int, inputs: int) -> dict[str, np.ndarray]:
        tensors = awq(rng, outputs, inputs)
        del tensors["scales"]
        return tensors

    with pytest.raises(CheckpointError, match=r"qweight is quantized, but .* lacks .*scales \(in .*/awq/model.safetensors\)"):
        loaded(write(tmp_path / "awq", FORMATS["awq"][0], without))


@pytest.mark.parametrize("dtype", tiered(["float32", "bfloat16", "float16"], {"float32", "bfloat16"}))
def test_four_bits_are_rounded_to_while_loading(dtype):
    """Groups as long as divide the inputs, and as `pack` would round the same numbers; memory is what the shapes say."""
    name = "llama-biases"
    rounded = loaded(DATA / name, dtype, quantization="int4")
    assert device_bytes(rounded.params) == device_bytes(rounded.shapes)
    assert "int4" in schemes(rounded.params)
    exact = dequantized(DATA / name, "float32")
    for layer, parts in rounded.params["layers"].items():
        for at, matrix in [(("attention", "qkv"), parts["attention"]["qkv"]), (("mlp", "gate_up"), parts["mlp"]["gate_up"])]:
            numbers = exact["layers"][layer][at[0]][at[1]]
            assert isinstance(matrix.layout, CodePanels)
            values, scales = matrix.scheme.quantize(np.asarray(numbers), (0,), np)
            np.testing.assert_array_equal(matrix.layout.restore(matrix.values), values)
            np.testing.assert_allclose(matrix.scales[0], scales[0], rtol=1e-6)


@pytest.mark.parametrize("name", ["int4", "w8a8"])
def test_what_native_kernels_alone_read_is_refused_on_several_devices(name):
    with pytest.raises(ConfigError, match=f"quantization '{name}' needs one CPU device, whose native kernels read it") as caught:
        loaded(DATA / "llama-biases", devices=2, quantization=name)
    assert caught.value.param == "quantization"


def test_weights_that_are_no_numbers_are_refused_in_four_bits(tmp_path):
    directory = write(tmp_path / "plain", {}, lambda rng, *shape: {"weight": np.full(shape, np.inf, np.float32)})
    (directory / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(
        CheckpointError, match=r"weights that are NaN or infinite: model.layers.0.self_attn.q_proj.weight has 4096"
    ):
        loaded(directory, quantization="int4")


@pytest.mark.parametrize("name", ["fp8 by channels", "fp8 by blocks"])
def test_codes_that_are_no_numbers_are_refused(tmp_path, name):
    method, quantized, _ = FORMATS[name]

    def broken(rng: np.random.Generator, outputs: int, inputs: int) -> dict[str, np.ndarray]:
        tensors = quantized(rng, outputs, inputs)
        tensors["weight"].view(np.uint8)[3, 5] = 0xFF
        return dict(tensors)

    with pytest.raises(CheckpointError, match=r"NaN or infinite: model\.\S+weight has 1 in \d+, the first at \[3, 5\]: nan"):
        loaded(write(tmp_path / "nan", method, broken))


def test_blocks_that_do_not_divide_the_inputs_are_dequantized(tmp_path):
    def blocks(rng: np.random.Generator, outputs: int, inputs: int) -> dict[str, np.ndarray]:
        scales = rng.uniform(0.0001, 0.001, (-(-outputs // 40), -(-inputs // 40))).astype(np.float32)
        return {"weight": float8(rng, outputs, inputs), "weight_scale_inv": scales}

    directory = write(tmp_path / "blocks", {"quant_method": "fp8", "weight_block_size": [40, 40]}, blocks)
    assert schemes(loaded(directory).params) == {"none"}


@pytest.mark.parametrize("name", ["int8", "w8a8", "int4"])
def test_fp8_is_rounded_where_that_is_asked_for(name):
    assert schemes(loaded(DATA / "mistral-fp8-channels", quantization=name).params) - {"none"} == {name}


def test_held_weights_are_guarded():
    sums = BlockSums()
    params = loaded(DATA / "llama-w4a16", sums=sums).params
    assert found_by_guard(params, sums) is None
