"""Quantized checkpoints on disk become the parameters that their dequantized forms become."""

import json
import shutil
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config, weight_rules
from jaxserve.weights.load import load_params
from sharding import make_mesh
from tests.support import packing

GPT_OSS = Path(__file__).parents[2] / "golden" / "data" / "gpt-oss-mxfp4"
NUMBERS = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 31,
    "hidden_size": 20,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [8, 16]},
}


def params_of(directory: Path, dtype: str, tensor: int):
    config = decoder_config(read_hf_config(directory))
    return jax.tree.map(np.asarray, load_params(directory, config, make_mesh(tensor), dtype))


def assert_equal(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def dequantized(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """[X, in, out] in bfloat16."""
    nibbles = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:3], 32)
    numbers = np.where(nibbles & 8, -1.0, 1.0) * NUMBERS[nibbles & 7] * 2.0 ** (scales[..., None].astype(int) - 127)
    return np.ascontiguousarray(numbers.reshape(*blocks.shape[:2], -1).swapaxes(1, 2).astype(ml_dtypes.bfloat16))


@pytest.fixture
def gpt_oss(tmp_path):
    """A copy without what transformers computed."""
    directory = tmp_path / "mxfp4"
    shutil.copytree(GPT_OSS, directory, ignore=shutil.ignore_patterns("*.npz", "greedy.json"))
    return directory


@pytest.mark.format("quantized", "MXFP4 of gpt-oss", "read")
@pytest.mark.parametrize(("dtype", "tensor"), [("float32", 1), ("bfloat16", 2)])
def test_gpt_oss_is_the_same_in_mxfp4_and_in_bfloat16(gpt_oss, tmp_path, dtype, tensor):
    stored = load_file(gpt_oss / "model.safetensors")
    plain = {name: array for name, array in stored.items() if array.dtype != np.uint8}
    for name in stored:
        if name.endswith("_blocks"):
            stack = name.removesuffix("_blocks")
            plain[stack] = dequantized(stored[name], stored[f"{stack}_scales"])
    assert len(plain) == len(stored) - 4
    (tmp_path / "plain").mkdir()
    save_file(plain, tmp_path / "plain" / "model.safetensors")
    config = json.loads((gpt_oss / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "plain" / "config.json").write_text(json.dumps(config))
    quantized = params_of(gpt_oss, dtype, tensor)
    assert_equal(quantized, params_of(tmp_path / "plain", dtype, tensor))
    gate_up = quantized["layers"]["0"]["mlp"]["gate_up"]
    shared = plain["model.layers.0.mlp.experts.gate_up_proj"].astype(dtype)
    np.testing.assert_array_equal(gate_up[1, :, 0, 0], shared[1, :, 0])
    np.testing.assert_array_equal(gate_up[1, :, 0, gate_up.shape[3] // 2], shared[1, :, 1])


def write_fp8(directory: Path, **changes: np.ndarray | None) -> tuple[Path, dict[str, np.ndarray]]:
    """A checkpoint whose matrices are FP8 but for the tables, and what it stands for; None drops a tensor."""
    rng = np.random.default_rng(0)
    stored: dict[str, np.ndarray] = {}
    meant: dict[str, np.ndarray] = {}
    sources = [source for rule in weight_rules(decoder_config(QWEN3)) for source in rule.sources]
    for name, shape in ((source.name, source.shape) for source in sources):
        meant[name] = stored[name] = rng.normal(size=shape).astype(np.float32)
        if len(shape) == 2 and ".layers." in name:
            stored[name] = meant[name].astype(ml_dtypes.float8_e4m3fn)
            factors = rng.uniform(0.5, 2, [-(-size // part) for size, part in zip(shape, (8, 16), strict=True)])
            stored[f"{name}_scale_inv"] = factors.astype(np.float32)
            every = np.kron(stored[f"{name}_scale_inv"], np.ones((8, 16), np.float32))[: shape[0], : shape[1]]
            meant[name] = stored[name].astype(np.float32) * every
    directory.mkdir()
    kept = {name: array for name, array in (stored | changes).items() if array is not None}
    scales = {name: array for name, array in kept.items() if name.endswith("_scale_inv")}
    files = {"a.safetensors": {name: kept[name] for name in kept if name not in scales}, "b.safetensors": scales}
    for file, tensors in files.items():
        save_file(tensors, directory / file)
    weight_map = {name: file for file, tensors in files.items() for name in tensors}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (directory / "config.json").write_text(json.dumps(QWEN3))
    return directory, meant


@pytest.mark.format("quantized", "FP8 in blocks (DeepSeek's)", "read")
@pytest.mark.parametrize(("dtype", "tensor"), [("float32", 1), ("bfloat16", 2), ("float32", 4)])
def test_fp8_is_its_numbers_times_their_factors_which_another_file_may_have(tmp_path, dtype, tensor):
    directory, meant = write_fp8(tmp_path / "fp8")
    (tmp_path / "plain").mkdir()
    save_file(meant, tmp_path / "plain" / "model.safetensors")
    (tmp_path / "plain" / "config.json").write_text(json.dumps(QWEN3 | {"quantization_config": None}))
    assert_equal(params_of(directory, dtype, tensor), params_of(tmp_path / "plain", dtype, tensor))


Stored = dict[str, np.ndarray]


def whole_numbers(weight: np.ndarray, group: int, bits: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers [O, I], zero points and scales [O, groups] of a matrix: rounded to the nearest."""
    groups = weight.reshape(len(weight), -1, group)
    least, greatest = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
    scales = ((greatest - least) / (2**bits - 1)).astype(np.float16)
    zeros = np.clip(np.rint(-least / scales), 1, 2**bits - 1).astype(int)
    numbers = np.clip(np.rint(groups / scales[..., None]) + zeros[..., None], 0, 2**bits - 1)
    return numbers.reshape(weight.shape).astype(int), zeros, scales


def awq(weight: np.ndarray) -> tuple[Stored, np.ndarray]:
    numbers, zeros, scales = whole_numbers(weight, 8)
    each = [np.repeat(part, 8, axis=1).astype(np.float32) for part in (zeros, scales)]
    return packing.awq(numbers, zeros, scales), (numbers.astype(np.float32) - each[0]) * each[1]


def gptq(weight: np.ndarray) -> tuple[Stored, np.ndarray]:
    """With inputs in an order of their own."""
    order = np.random.default_rng(weight.shape).permutation(weight.shape[1])
    back = np.argsort(order)
    numbers, zeros, scales = whole_numbers(weight[:, order], 8)
    each = [np.repeat(part, 8, axis=1).astype(np.float32) for part in (zeros, scales)]
    stored = packing.gptq(numbers[:, back], zeros, scales, 4, 1) | {"g_idx": (back // 8).astype(np.int32)}
    return stored, ((numbers.astype(np.float32) - each[0]) * each[1])[:, back].copy()


def w4a16(weight: np.ndarray) -> tuple[Stored, np.ndarray]:
    """compressed-tensors, symmetric."""
    groups = weight.reshape(len(weight), -1, 8)
    scales = (np.abs(groups).max(-1, keepdims=True) / 7.5).astype(np.float32)
    numbers = np.clip(np.rint(groups / scales), -8, 7)
    packed = packing.pack_rows(numbers.reshape(weight.shape).astype(int) + 8, 4)
    stored = {"weight_packed": packed, "weight_scale": scales[..., 0], "weight_shape": np.array(weight.shape)}
    return stored, (numbers.astype(np.float32) * scales).reshape(weight.shape)


def w8a8(weight: np.ndarray) -> tuple[Stored, np.ndarray]:
    scales = (np.abs(weight).max(1, keepdims=True) / 127).astype(np.float32)
    numbers = np.rint(weight / scales).astype(np.int8)
    return {"weight": numbers, "weight_scale": scales}, numbers.astype(np.float32) * scales


def of_groups(form: str, **weights: object) -> dict[str, object]:
    group = {"targets": ["Linear"], "weights": {"type": "int", **weights}, "format": form}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "kv_cache_scheme": {"num_bits": 8}}


METHODS = {
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": 8}),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": True}),
    "w4a16": (w4a16, of_groups("pack-quantized", num_bits=4, strategy="group", group_size=8)),
    "w8a8": (w8a8, of_groups("int-quantized", num_bits=8, strategy="channel")),
}
EVEN = QWEN3 | {"hidden_size": 16, "num_attention_heads": 4, "head_dim": 8, "intermediate_size": 32}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("dtype", "tensor"), [("float32", 1), ("bfloat16", 2)])
def test_integers_in_groups_become_the_parameters_that_they_stand_for(tmp_path, method, dtype, tensor):
    quantize, settings = METHODS[method]
    rng = np.random.default_rng(0)
    stored: Stored = {"model.layers.0.self_attn.k_scale": np.ones(1, np.float32)} if method.startswith("w") else {}
    meant: Stored = {}
    sources = [source for rule in weight_rules(decoder_config(EVEN)) for source in rule.sources]
    for name, shape in ((source.name, source.shape) for source in sources):
        meant[name] = rng.normal(size=shape).astype(np.float32)
        if len(shape) == 2 and ".layers." in name:
            parts, meant[name] = quantize(meant[name])
            stored |= {f"{name.removesuffix('.weight')}.{part}": array for part, array in parts.items()}
        else:
            stored[name] = meant[name]
    for folder, tensors, config in (("stored", stored, settings), ("plain", meant, None)):
        (tmp_path / folder).mkdir()
        save_file(tensors, tmp_path / folder / "model.safetensors")
        (tmp_path / folder / "config.json").write_text(json.dumps(EVEN | {"quantization_config": config}))
    assert_equal(params_of(tmp_path / "stored", dtype, tensor), params_of(tmp_path / "plain", dtype, tensor))


DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({f"{DOWN}_scale_inv": None}, f"{DOWN} is quantized, but the checkpoint lacks its factors {DOWN}_scale_inv"),
        ({f"{DOWN}_scale_inv": np.ones((3, 3), "f4")}, r"_scale_inv is \[3, 3\], but .* \[20, 24\] .* needs \[3, 2\]"),
        ({DOWN: np.ones((20, 24), "f4")}, f"1 unexpected: {DOWN}_scale_inv"),
        ({DOWN: np.ones((20, 24), ml_dtypes.float8_e5m2)}, rf"1 not float32, .*: {DOWN} \(float8_e5m2\)"),
        (
            {DOWN: np.full((20, 24), np.nan, ml_dtypes.float8_e4m3fn)},
            f"NaN or infinite: {DOWN} has 480 in 480.* \\(in .*a.safetensors\\)",
        ),
    ],
)
def test_what_is_wrong_with_an_fp8_checkpoint_is_named(tmp_path, changes, complaint):
    directory, _ = write_fp8(tmp_path / "fp8", **changes)
    with pytest.raises(CheckpointError, match=complaint):
        params_of(directory, "float32", 1)


def test_what_is_wrong_with_an_mxfp4_checkpoint_is_named(gpt_oss):
    stored = load_file(gpt_oss / "model.safetensors")
    blocks, scales = (f"model.layers.0.mlp.experts.gate_up_proj_{part}" for part in ("blocks", "scales"))
    for changes, complaint in (
        ({scales: None}, f"lacks its factors {scales}"),
        ({blocks: None}, f"1 missing: .*gate_up_proj .* 1 unexpected: {scales}"),
        ({scales: stored[scales][:, :-1]}, rf"{scales} is \[4, 63, 2\]"),
        ({blocks: stored[blocks][:, :-2], scales: stored[scales][:, :-2]}, r"gate_up_proj is \[4, 64, 62\], needs \[4, 64, 64\]"),
        ({scales: np.full_like(stored[scales], 255)}, f"NaN or infinite: {blocks.removesuffix('_blocks')} has"),
    ):
        kept = {name: np.ascontiguousarray(array) for name, array in (stored | changes).items() if array is not None}
        save_file(kept, gpt_oss / "model.safetensors")
        with pytest.raises(CheckpointError, match=complaint):
            params_of(gpt_oss, "float32", 1)


@pytest.mark.format("quantized", "quantized tensors whose config.json does not say so", "refused")
def test_a_quantized_checkpoint_whose_config_does_not_say_so_is_refused(gpt_oss):
    config = json.loads((gpt_oss / "config.json").read_text())
    (gpt_oss / "config.json").write_text(json.dumps(config | {"quantization_config": None}))
    with pytest.raises(CheckpointError, match=r"4 missing: .*gate_up_proj .*8 unexpected"):
        params_of(gpt_oss, "float32", 1)
    (gpt_oss / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "hqq"}}))
    with pytest.raises(UnsupportedModelError, match="quant_method='hqq'"):
        params_of(gpt_oss, "float32", 1)
