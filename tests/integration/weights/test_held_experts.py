"""Routed experts that keep the size that they are stored in, or are rounded, on one CPU device: the same numbers and products."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxserve.errors import CheckpointError
from jaxserve.executor.experts import ShardedDispatch
from jaxserve.executor.memory import device_bytes
from jaxserve.models.binding import Params, UsedRows, bind
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.dense_attention import dense_attend
from jaxserve.models.registry import decoder_config
from jaxserve.weights.recheck import BlockSums
from pallas_kernels import native
from pallas_kernels.matmul import Matrix
from pallas_kernels.native import load
from pallas_kernels.quantization import SCHEMES, FourBit
from sharding import make_mesh
from tests.golden.reading import DATA, TOLERANCE, read_golden
from tests.support.guarded import found_by_guard
from tests.support.held import Loaded, dequantized, loaded, on_hopper, plain, schemes
from tests.support.stored_formats import FORMATS, FP8_BLOCKS, QWEN3_MOE, write
from tests.support.tiers import tiered

pytestmark = pytest.mark.skipif(native.missing() is not None, reason=f"NOT CHECKED: native kernels: {native.missing()}")
GPT_OSS, SHARED = "gpt-oss-mxfp4", "qwen2-moe-shared"


def experts_of(params: Params) -> dict[str, Any]:
    """The matrices of all layers' routed experts."""
    mlps = {layer: parts["mlp"] for layer, parts in params["layers"].items() if "router" in parts["mlp"]}
    return {f"{layer} {name}": mlp[name] for layer, mlp in mlps.items() for name in ("gate_up", "down")}


def logits(directory: Path, params: Params, tokens: Any) -> np.ndarray:
    config = decoder_config(read_hf_config(directory))

    @jax.jit
    def run(params: Params, ids: jax.Array) -> jax.Array:
        decoder = bind(config, params)
        dispatch = ShardedDispatch(make_mesh(1), jnp.int32(len(tokens)))
        return decoder.logits(decoder.hidden(ids, jnp.arange(len(tokens)), dense_attend, dispatch))

    return np.asarray(run(params, np.array(tokens, np.int32)))[:, : config.vocab_size]


# One of each scheme; of matrices alone test_held_as_stored has all.
@pytest.mark.parametrize("name", tiered(FORMATS, {"awq", "nvfp4", "fp8 by blocks", "int8"}))
def test_experts_of_each_format_are_held_and_stand_for_the_same_numbers(tmp_path, name):
    """Each expert's projections are tensors of their own."""
    method, quantized, scheme = FORMATS[name]
    directory = write(tmp_path / name, method, quantized, QWEN3_MOE)
    held = loaded(directory)
    experts = experts_of(held.params)
    assert {expert.scheme for expert in experts.values()} == {scheme}
    assert {expert.shape for expert in experts.values()} == {(3, 64, 1, 192), (3, 1, 96, 64)}
    assert device_bytes(held.params) == device_bytes(held.shapes)
    jax.tree.map(np.testing.assert_array_equal, plain(held.params), dequantized(directory))
    tokens = np.arange(7)
    np.testing.assert_allclose(
        logits(directory, held.params, tokens), logits(directory, plain(held.params), tokens), rtol=0, atol=1e-3
    )


# Whole blocks of inputs, and outputs of a wgmma.
WIDE = {"hidden_size": 256, "moe_intermediate_size": 256, "vocab_size": 64, "head_dim": 64}


def assert_words_of(held: Loaded, directory: Path, scheme: Any) -> None:
    exact = experts_of(dequantized(directory))
    for path, matrix in experts_of(held.params).items():
        assert (matrix.scheme, matrix.layout.name, matrix.stacked) == (scheme, "words", True)
        np.testing.assert_array_equal(plain(matrix), exact[path])
    assert device_bytes(held.params) == device_bytes(held.shapes)


WORDS = ("awq", "gptq", "int8", "packed int8", "fp8 by channels", "fp8", "fp8 blocks")


@pytest.mark.parametrize("name", tiered(WORDS, {"awq", "packed int8", "fp8 by channels", "fp8 blocks"}))  # one of each scheme
def test_a_hopper_holds_words_of_experts(tmp_path, monkeypatch, name):
    """As its kernel takes them: the same numbers, as many bytes as the shapes say."""
    on_hopper(monkeypatch)
    method, quantized, scheme = (FORMATS | {"fp8 blocks": FP8_BLOCKS})[name]
    directory = write(tmp_path / name, method, quantized, QWEN3_MOE | WIDE)
    assert_words_of(loaded(directory, "bfloat16"), directory, scheme)


def test_a_hopper_holds_words_of_gpt_oss(tmp_path, monkeypatch):
    """Stacked, the rows of gate and up in turn."""
    on_hopper(monkeypatch)
    tensors = load_file(DATA / GPT_OSS / "model.safetensors")
    rng = np.random.default_rng(5)
    for name, tensor in tensors.items():
        if ".experts." in name:
            wide = (tensor.shape[0], 512 if "gate_up" in name else 256, *([8] if tensor.ndim > 2 else []), *tensor.shape[3:])
            number = rng.integers(118, 124, wide) if name.endswith("_scales") else rng.integers(0, 256, wide)
            tensors[name] = number.astype(tensor.dtype) if tensor.dtype == np.uint8 else np.zeros(wide, tensor.dtype)
        else:
            tensors[name] = np.resize(tensor, [256 if size == 64 else size for size in tensor.shape])
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((DATA / GPT_OSS / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": 256, "intermediate_size": 256}))
    assert_words_of(loaded(tmp_path, "bfloat16"), tmp_path, FourBit("fp4", 32))


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_a_hopper_rounds_experts_to_words(tmp_path, monkeypatch, name):
    on_hopper(monkeypatch)
    directory = write(tmp_path / name, *FORMATS["int8"][:2], QWEN3_MOE | WIDE)
    exact = experts_of(dequantized(directory))
    held = experts_of(loaded(directory, "bfloat16", quantization=name, load_format="dummy").params)
    assert {(matrix.scheme.name, matrix.layout.name) for matrix in held.values()} == {(name, "words")}
    assert {path: matrix.shape for path, matrix in held.items()} == {path: numbers.shape for path, numbers in exact.items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gpt_oss_holds_its_mxfp4(dtype):
    """Stacked, the rows of gate and up in turn: a code of 4 bits a number, and a factor for 32; the same numbers."""
    held, whole = loaded(DATA / GPT_OSS, dtype), dequantized(DATA / GPT_OSS, dtype)
    experts = experts_of(held.params)
    assert {expert.scheme for expert in experts.values()} == {FourBit("fp4", 32)}
    jax.tree.map(np.testing.assert_array_equal, plain(held.params), whole)
    assert device_bytes(held.params) == device_bytes(held.shapes)
    described: Any = jax.tree.structure(held.shapes)
    assert described == jax.tree.structure(held.params)
    if dtype == "bfloat16":
        assert device_bytes(experts) == 0.3125 * device_bytes(experts_of(whole))


def test_logits_of_gpt_oss_are_transformers_own():
    golden = read_golden(GPT_OSS)
    got = logits(DATA / GPT_OSS, loaded(DATA / GPT_OSS).params, golden.prompts[golden.full_prompt])
    np.testing.assert_allclose(got, golden.full, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(("exponent", "code", "bad"), [(255, 0, "nan"), (254, 7, "inf"), (253, 5, None), (252, 7, None)])
def test_exponents_of_no_numbers_are_refused(tmp_path, exponent, code, bad):
    """NaN, and what makes a number infinite; the largest numbers that bfloat16 has are numbers."""
    name = "model.layers.1.mlp.experts.gate_up_proj"
    tensors = load_file(DATA / GPT_OSS / "model.safetensors")
    tensors[f"{name}_scales"][2, 7, 1] = exponent
    tensors[f"{name}_blocks"][2, 7, 1] = 0
    tensors[f"{name}_blocks"][2, 7, 1, 3] = code
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((DATA / GPT_OSS / "config.json").read_bytes())
    if bad is None:
        number = np.float32(FourBit("fp4").table()[code]) * np.float32(2.0) ** (exponent - 127)
        assert np.abs(plain(loaded(tmp_path).params)["layers"]["1"]["mlp"]["gate_up"]).max() == number
        return
    with pytest.raises(
        CheckpointError, match=rf"weights that are NaN or infinite: {name} has \d+ in .*: {bad}.* \(in .*model.safetensors\)"
    ):
        loaded(tmp_path)


# Both models in each number of bits, and w8a8 once.
ROUNDED = {(GPT_OSS, "int8"), (SHARED, "w8a8"), (GPT_OSS, "int4"), (SHARED, "int4")}


@pytest.mark.parametrize(("model", "name"), tiered(product((GPT_OSS, SHARED), ("int8", "w8a8", "int4")), ROUNDED))
def test_experts_are_rounded_on_one_device(model, name):
    """Read, and made from a seed, as the shapes say; each expert as a matrix of its own would be."""
    held, whole = loaded(DATA / model, quantization=name), dequantized(DATA / model)
    assert device_bytes(held.params) == device_bytes(held.shapes)
    dummy = loaded(DATA / model, quantization=name, load_format="dummy").params
    assert jax.tree.map(jnp.shape, dummy) == jax.tree.map(jnp.shape, held.params)
    for path, numbers in experts_of(whole).items():
        inputs = (0,) if path.endswith("gate_up") else (0, 1)
        scheme, matrix = SCHEMES[name].fitted(numbers.shape[1:], inputs), experts_of(held.params)[path]
        if scheme is None:  # fewer inputs than a group has
            np.testing.assert_array_equal(matrix, numbers)
            continue
        assert matrix.scheme == scheme
        scales = matrix.scales if name != "int4" else matrix.scales[0]
        restored = np.asarray(jax.jit(jax.vmap(matrix.layout.restore))(matrix.values))
        for values, factors, expert in zip(restored, *map(np.asarray, (scales, numbers)), strict=True):
            wanted, computed = scheme.quantize(expert, inputs, np)
            np.testing.assert_array_equal(values, wanted)
            np.testing.assert_allclose(factors, computed if name != "int4" else computed[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "name"), tiered(product((GPT_OSS, SHARED), ("int8", "int4")), {(GPT_OSS, "int8"), (SHARED, "int4")})
)
def test_logits_are_those_of_the_rounded_numbers(model, name):
    golden = read_golden(model)
    params, tokens = loaded(DATA / model, quantization=name).params, golden.prompts[golden.full_prompt]
    got = logits(DATA / model, params, tokens)
    np.testing.assert_allclose(got, logits(DATA / model, plain(params), tokens), rtol=0, atol=1e-3)


@pytest.mark.parametrize(("name", "most"), [("int8", 0.06), ("w8a8", 0.12)])
def test_logits_are_near_transformers(name, most):
    golden = read_golden(SHARED)
    got = logits(DATA / SHARED, loaded(DATA / SHARED, quantization=name).params, golden.prompts[golden.full_prompt])
    assert 0 < np.sqrt(np.mean((got - golden.full) ** 2)) < most * np.std(golden.full)


@pytest.mark.parametrize("more", [{}, {"quantization": "int8"}])
def test_on_several_devices_they_are_dequantized(more):
    experts = experts_of(loaded(DATA / GPT_OSS, devices=2, **more).params)
    for path, numbers in experts_of(dequantized(DATA / GPT_OSS)).items():
        np.testing.assert_array_equal(np.sort(experts[path], axis=None), np.sort(numbers, axis=None))


def test_without_native_kernels_they_are_dequantized(monkeypatch):
    monkeypatch.setattr(load, "missing", lambda: "the library is not built")
    assert schemes(loaded(DATA / GPT_OSS).params) == set()


def test_float16_has_no_kernel_for_plain_experts_and_holds_stored_ones():
    assert {expert.scheme.name for expert in experts_of(loaded(DATA / GPT_OSS, "float16").params).values()} == {"int4"}


@pytest.mark.parametrize("more", [{}, {"quantization": "int8"}])
def test_padding_visits_no_expert(more):
    """Real tokens come out as without padding, bit for bit."""
    golden, config, real = read_golden(GPT_OSS), decoder_config(read_hf_config(DATA / GPT_OSS)), 5
    params = loaded(DATA / GPT_OSS, "bfloat16", **more).params
    tokens = np.array(golden.prompts[golden.full_prompt], np.int32)[:real]

    @jax.jit
    def run(params: Params, ids: jax.Array, used: UsedRows | None) -> jax.Array:
        decoder = bind(config, params, used)
        dispatch = ShardedDispatch(make_mesh(1), jnp.int32(real))
        return decoder.hidden(ids, jnp.arange(ids.shape[0]), dense_attend, dispatch)

    padded = run(params, np.pad(tokens, (0, 3)), UsedRows(jnp.int32(real), jnp.int32(2)))
    np.testing.assert_array_equal(np.asarray(padded)[:real], run(params, tokens, None))


def test_held_experts_are_guarded():
    sums = BlockSums()
    params = loaded(DATA / GPT_OSS, sums=sums).params
    assert found_by_guard(params, sums) is None
    assert isinstance(params["layers"]["0"]["mlp"]["down"], Matrix)
