"""Stored tensors of every quantized format against what its own library reads, or a loop over the format's definition."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from jaxserve.errors import CheckpointError
from jaxserve.models.quantization import quantization_from_hf
from jaxserve.models.quantization_methods import AWQ, GPTQ, CompressedTensors, ModelOpt, ScaledFP8, WeightGroup
from jaxserve.weights.checkpoint import whole
from jaxserve.weights.quantized.layout import Dequantized, Layout
from jaxserve.weights.safetensors import SafetensorsCheckpoint
from tests.support import packing

LIBRARY = Path(__file__).parents[2] / "data" / "compressed_tensors"
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


class Stored:
    """Arrays as a checkpoint's tensors."""

    def __init__(self, arrays):
        self.arrays = arrays

    def read(self, name, bounds):
        for (start, stop), size in zip(bounds, self.arrays[name].shape, strict=True):
            assert 0 <= start <= stop <= size, (name, bounds)
        return self.arrays[name][tuple(slice(*pair) for pair in bounds)]

    def dequantized(self, quantization, dtype="float32"):
        shapes = {name: array.shape for name, array in self.arrays.items()}
        layout = Layout.of(shapes, {name: array.dtype.name for name, array in self.arrays.items()}, quantization, dtype)
        return Dequantized(self, layout), layout


def some_bounds(data: st.DataObject, shape: tuple[int, ...]):
    pairs = [data.draw(st.lists(st.integers(0, size), min_size=2, max_size=2, unique=True)) for size in shape]
    return tuple((min(pair), max(pair)) for pair in pairs)


def assert_any_block(data: st.DataObject, tensors: Dequantized, name: str, meant: np.ndarray, rtol: float = 3e-7):
    bounds = some_bounds(data, meant.shape)
    for block in (bounds, whole(meant.shape)):
        np.testing.assert_allclose(tensors.read(name, block), meant[tuple(slice(*pair) for pair in block)], rtol=rtol)


@pytest.mark.format("quantized", "compressed-tensors: integers of 4 and 8 bits, FP8", "read")
@pytest.mark.parametrize("folder", sorted(LIBRARY.iterdir()), ids=lambda folder: folder.name)
def test_compressed_tensors_is_what_its_library_reads(folder):
    expected = load_file(folder / "expected.safetensors")
    rtol = 2**-7 if folder.name == "nvfp4a16" else 3e-7  # that one is read in bfloat16
    quantization = quantization_from_hf(json.loads((folder / "config.json").read_text()))
    with SafetensorsCheckpoint(folder) as checkpoint:
        layout = Layout.of(checkpoint.shapes, checkpoint.dtypes, quantization, "float32")
        assert layout.shapes == {name: meant.shape for name, meant in expected.items()}
        assert set(layout.dtypes.values()) == {"float32"}
        tensors = Dequantized(checkpoint, layout)

        @settings(max_examples=20)
        @given(st.data(), st.sampled_from(sorted(expected)))
        def check(data, name):
            assert_any_block(data, tensors, name, expected[name], rtol)

        check()
        rounded = Layout.of(checkpoint.shapes, checkpoint.dtypes, quantization, "bfloat16")
        for name, meant in expected.items():
            block = Dequantized(checkpoint, rounded).read(name, whole(meant.shape))
            assert block.dtype == ml_dtypes.bfloat16
            np.testing.assert_allclose(block.astype(np.float32), meant, rtol=max(rtol, 2**-8))


def whole_numbers(rng: np.random.Generator, outputs: int, inputs: int, group: int, bits: int):
    """Numbers, zero points and scales; zero points leave room for one to be added."""
    zeros = rng.integers(1, 2**bits, (outputs, inputs // group))
    scales = rng.uniform(0.01, 2, zeros.shape).astype(np.float16)
    return {"numbers": rng.integers(0, 2**bits, (outputs, inputs)), "zeros": zeros, "scales": scales}


def meant_by(groups, numbers, zeros, scales):
    return ((numbers - zeros[:, groups]) * scales[:, groups].astype(np.float64)).astype(np.float32)


@pytest.mark.format("quantized", "AWQ", "read")
@settings(max_examples=25)
@given(st.integers(1, 4), st.integers(1, 3), st.sampled_from([4, 12]), st.data())
def test_awq_is_number_less_zero_point_times_scale(words, count, group, data):
    outputs, inputs = 8 * words, group * count
    parts = whole_numbers(np.random.default_rng(words), outputs, inputs, group, 4)
    stored = Stored({f"up.{name}": array for name, array in packing.awq(**parts).items()} | {"up.bias": np.ones(3, np.float16)})
    tensors, layout = stored.dequantized(AWQ(group if count > 1 else None))
    assert layout.shapes == {"up.weight": (outputs, inputs), "up.bias": (3,)}
    assert_any_block(data, tensors, "up.weight", meant_by(np.arange(inputs) // group, **parts))


@pytest.mark.format("quantized", "GPTQ, with and without `desc_act`", "read")
@settings(max_examples=30)
@given(st.sampled_from([2, 4, 8]), st.integers(1, 3), st.integers(1, 3), st.sampled_from([0, 1]), st.booleans(), st.data())
def test_gptq_is_number_less_zero_point_times_scale(bits, words, count, offset, ordered, data):
    outputs, group = 16 * words, 32
    inputs, rng = group * count, np.random.default_rng(words)
    parts = whole_numbers(rng, outputs, inputs, group, bits)
    groups = rng.permutation(inputs) // group if ordered else np.arange(inputs) // group
    arrays = {f"up.{name}": array for name, array in packing.gptq(**parts, bits=bits, offset=offset).items()}
    stored = Stored(arrays | {"up.g_idx": groups.astype(np.int32)} if ordered else arrays)
    tensors, layout = stored.dequantized(GPTQ(bits, group, offset, ordered))
    assert layout.shapes == {"up.weight": (outputs, inputs)}
    assert_any_block(data, tensors, "up.weight", meant_by(groups, **parts))


@pytest.mark.format("quantized", "FP8 with a scale for the tensor or for each output", "read")
@pytest.mark.parametrize("shape", [(), (1,), (6, 1), (6,)])
def test_fp8_with_a_factor_for_all_or_for_each_output(shape):
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(6, 8)).astype(ml_dtypes.float8_e4m3fn)
    scale = np.asarray(rng.uniform(0.1, 2, shape), np.float32)
    arrays = {"up.weight": numbers, "up.weight_scale": scale, "up.input_scale": np.ones((), np.float32)}
    tensors, layout = Stored(arrays | {"attn.k_scale": np.ones(1, np.float32)}).dequantized(ScaledFP8())
    assert layout.shapes == {"up.weight": (6, 8)}
    each = np.broadcast_to(scale.reshape(-1, 1), (6, 8))
    np.testing.assert_array_equal(tensors.read("up.weight", ((1, 5), (2, 8))), (numbers.astype(np.float32) * each)[1:5, 2:])


@pytest.mark.format("quantized", "ModelOpt: NVFP4 and FP8", "read")
def test_nvfp4_of_modelopt_beside_fp8_and_what_is_not_quantized():
    rng = np.random.default_rng(0)
    octets = rng.integers(0, 256, (3, 16), np.uint8)
    scales = np.array([[0.5, 2], [0, 1], [448, 0.015625]], ml_dtypes.float8_e4m3fn)  # 0: a group too small for FP8
    arrays = {"up.weight": octets, "up.weight_scale": scales, "up.weight_scale_2": np.float32(0.25).reshape(())}
    arrays |= {"q.weight": np.full((2, 2), 3, ml_dtypes.float8_e4m3fn), "q.weight_scale": np.full((), 0.5, np.float32)}
    arrays |= {
        "q.input_scale": np.ones((), np.float32),
        "k_proj.k_scale": np.ones((), np.float32),
        "norm.weight": np.ones(4, "f4"),
    }
    tensors, layout = Stored(arrays).dequantized(ModelOpt())
    assert layout.shapes == {"up.weight": (3, 32), "q.weight": (2, 2), "norm.weight": (4,)}
    meant = [
        [FP4[octets[row, column // 2] >> 4 * (column % 2) & 15] * float(scales[row, column // 16]) * 0.25 for column in range(32)]
        for row in range(3)
    ]
    np.testing.assert_array_equal(tensors.read("up.weight", ((0, 3), (0, 32))), np.array(meant, np.float32))
    np.testing.assert_array_equal(tensors.read("up.weight", ((1, 3), (5, 20))), np.array(meant, np.float32)[1:, 5:20])
    np.testing.assert_array_equal(tensors.read("q.weight", ((0, 2), (0, 2))), np.full((2, 2), 1.5))


NUMBERS = whole_numbers(np.random.default_rng(0), 16, 64, 32, 4)
AWQ_PARTS, GPTQ_PARTS = packing.awq(**NUMBERS), packing.gptq(**NUMBERS, bits=4, offset=1)
ORDER = np.zeros(64, np.int32)


def part(name: str, change):
    return lambda parts: parts | {name: change(parts[name])}


@pytest.mark.format("quantized", "parts whose shapes or dtypes do not fit together", "refused")
@pytest.mark.parametrize(
    ("parts", "quantization", "change", "complaint"),
    [
        (AWQ_PARTS, AWQ(32), lambda p: {k: p[k] for k in ("qweight", "qzeros")}, "lacks its factors up.scales"),
        (AWQ_PARTS, AWQ(32), lambda p: {k: p[k] for k in ("qweight", "scales")}, "lacks its factors up.qzeros"),
        (AWQ_PARTS, AWQ(64), dict, r"up.scales is \[2, 16\], but up.qweight \[16, 64\] in blocks of \[1, 64\] needs \[1, 16\]"),
        (AWQ_PARTS, AWQ(32), part("qweight", lambda a: a[:, :1]), r"up.scales is \[2, 16\], .* needs \[2, 8\]"),
        (AWQ_PARTS, AWQ(32), part("qweight", lambda a: a[:-1]), "up.qweight has 63 inputs, no multiple of its group_size 32"),
        (AWQ_PARTS, AWQ(32), part("qzeros", lambda a: a[:, :1]), r"up.qzeros is \[2, 1\], but up.qweight needs \[2, 2\]"),
        (AWQ_PARTS, AWQ(32), part("qweight", lambda a: a.astype("i8")), "up.qweight is int64, not int32"),
        (
            AWQ_PARTS,
            AWQ(32),
            part("scales", lambda a: a * np.float16(np.nan)),
            r"scales has 32 factors that are NaN.*\[0, 0\]: nan",
        ),
        (
            AWQ_PARTS,
            AWQ(32),
            part("scales", lambda a: a * (np.arange(2) < 1)[:, None]),
            r"scales has 16 .* 0, the first .*\[0, 1\]: 0",
        ),
        (GPTQ_PARTS, GPTQ(4, 32, 1), part("qzeros", np.zeros_like), None),
        (
            GPTQ_PARTS,
            GPTQ(4, 32, 1),
            part("qzeros", lambda a: a * 0 - 1),
            "up.qzeros has zero points over 15, the largest of 4 bits",
        ),
        (GPTQ_PARTS, GPTQ(4, 32, 1), lambda p: p | {"g_idx": ORDER + 2}, "g_idx names groups from 2 to 2, and there are 2"),
        (GPTQ_PARTS, GPTQ(4, 32, 1), lambda p: p | {"g_idx": ORDER - 1}, None),
        (GPTQ_PARTS, GPTQ(4, 32, 1), lambda p: p | {"g_idx": ORDER[1:]}, r"g_idx is \[63\], but up.qweight needs \[64\]"),
        (GPTQ_PARTS, GPTQ(8, 32, 1), dict, r"up.scales is \[2, 16\], but up.qweight \[16, 32\] .* needs \[1, 16\]"),
    ],
)
def test_parts_that_do_not_fit_are_named(parts, quantization, change, complaint):
    def read():
        stored = Stored({f"up.{name}": array for name, array in change(parts).items()})
        tensors, layout = stored.dequantized(quantization)
        return tensors.read("up.weight", whole(layout.shapes["up.weight"]))

    if complaint is None:
        assert np.isfinite(read()).all()
        return
    with pytest.raises(CheckpointError, match=complaint):
        read()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            {"weight_shape": np.array([130, 127])},
            r"down_proj.weight_shape says \[130, 127\], but .*weight_packed has \[130, 128\]",
        ),
        ({"weight_packed": None}, "down_proj is quantized, but the checkpoint lacks its factors .*down_proj.weight_packed"),
        ({"weight_scale": np.ones((130, 2), np.float32)}, r"weight_scale is \[130, 2\].* needs \[130, 1\] or \[130\]"),
        ({"weight_zero_point": np.zeros((16, 1), np.int32)}, r"weight_zero_point is \[16, 1\], but .* needs \[17, 1\]"),
    ],
)
def test_packed_parts_of_compressed_tensors_that_do_not_fit_are_named(change, complaint):
    folder, module = LIBRARY / "w4a16_asym", "model.layers.0.mlp.down_proj"
    arrays = {name: array for name, array in load_file(folder / "model.safetensors").items() if name.startswith(module)}
    for name, array in change.items():
        arrays[f"{module}.{name}"] = array
    stored = Stored({name: array for name, array in arrays.items() if array is not None})
    quantization = quantization_from_hf(json.loads((folder / "config.json").read_text()))
    with pytest.raises(CheckpointError, match=complaint):
        stored.dequantized(quantization)[0].read(f"{module}.weight", ((0, 130), (0, 128)))


@pytest.mark.parametrize("block", [(1, None), (1, 4), (2, 3)])
def test_int8_less_its_zero_points(block):
    rng = np.random.default_rng(0)
    numbers = rng.integers(-128, 128, (4, 12), np.int8)
    grid = (4 // block[0], 12 // (block[1] or 12))
    zeros, scales = rng.integers(-9, 9, grid, np.int8), rng.uniform(0.1, 2, grid).astype(np.float32)
    arrays = {"up.weight": numbers, "up.weight_scale": scales, "up.weight_zero_point": zeros}
    method = CompressedTensors((WeightGroup(("Linear",), "quantized", 8, block),))
    meant = [
        [
            (float(numbers[r, c]) - zeros[r // block[0], c * grid[1] // 12]) * scales[r // block[0], c * grid[1] // 12]
            for c in range(12)
        ]
        for r in range(4)
    ]
    tensors, layout = Stored(arrays).dequantized(method)
    assert layout.shapes == {"up.weight": (4, 12)}
    np.testing.assert_allclose(tensors.read("up.weight", ((1, 4), (2, 11))), np.array(meant)[1:, 2:11], rtol=3e-7)


def test_zero_points_in_another_grid_than_their_factors():
    arrays = {"up.weight": np.ones((4, 8), np.int8), "up.weight_scale": np.ones((4, 2), "f4")}
    arrays["up.weight_zero_point"] = np.ones((4, 1), np.int8)
    with pytest.raises(CheckpointError, match=r"weight_zero_point is \[4, 1\], but up.weight needs \[4, 2\]"):
        Stored(arrays).dequantized(CompressedTensors((WeightGroup(("Linear",), "quantized", 8, (1, 4)),)))
