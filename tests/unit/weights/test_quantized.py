import itertools
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.errors import CheckpointError
from jaxserve.models.quantization_methods import MXFP4, BlockFP8
from jaxserve.models.rules import Packing, Source, WeightRule
from jaxserve.weights.packing import read_block
from jaxserve.weights.quantized import mxfp4
from jaxserve.weights.quantized.layout import Dequantized, Layout

NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class Stored:
    """Arrays as a checkpoint's tensors."""

    def __init__(self, **arrays):
        self.arrays = arrays
        self.reads = []
        self.shapes = {name: array.shape for name, array in arrays.items()}
        self.dtypes = {name: array.dtype.name for name, array in arrays.items()}

    def read(self, name, bounds):
        for (start, stop), size in zip(bounds, self.arrays[name].shape, strict=True):
            assert 0 <= start <= stop <= size, (name, bounds)
        self.reads.append(name)
        return self.arrays[name][tuple(slice(*pair) for pair in bounds)]

    def dequantized(self, quantization, dtype="float32"):
        layout = Layout.of(self.shapes, self.dtypes, quantization, dtype)
        return Dequantized(self, layout), layout


def fp4(nibble: int, exponent: int) -> float:
    """A number of MXFP4 as the specification has it: one sign bit, two of exponent, one of mantissa."""
    return (-1.0 if nibble & 8 else 1.0) * NUMBERS[nibble & 7] * 2.0 ** (exponent - 127)


def fp8(byte: int) -> float:
    """A number of float8_e4m3fn: one sign bit, four of exponent, three of mantissa."""
    sign, exponent, mantissa = -1.0 if byte & 128 else 1.0, byte >> 3 & 15, byte & 7
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return float("nan") if byte & 127 == 127 else sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def some_bounds(data: st.DataObject, shape: tuple[int, ...]):
    pairs = [data.draw(st.lists(st.integers(0, size), min_size=2, max_size=2, unique=True)) for size in shape]
    return tuple((min(pair), max(pair)) for pair in pairs)


def mxfp4_parts(experts: int, outputs: int, groups: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (experts, outputs, groups, 16), np.uint8)
    return blocks, rng.integers(90, 160, (experts, outputs, groups), np.uint8)


@settings(max_examples=25)
@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 3), st.integers(1, 90), st.data())
def test_any_block_of_mxfp4_is_what_the_format_says(experts, outputs, groups, chunk, data):
    blocks, scales = mxfp4_parts(experts, outputs, groups, seed=chunk)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mxfp4, "_CHUNK", chunk)  # one row at a time, or several
        tensors, layout = Stored(w_blocks=blocks, w_scales=scales).dequantized(MXFP4())
        assert layout.shapes == {"w": (experts, 32 * groups, outputs)}
        bounds = some_bounds(data, layout.shapes["w"])
        block = tensors.read("w", bounds)
    assert block.dtype.name == layout.dtypes["w"] == "bfloat16"
    assert block.shape == tuple(stop - start for start, stop in bounds)
    for place in itertools.product(*(range(*pair) for pair in bounds)):
        expert, column, row = place
        byte = int(blocks[expert, row, column // 32, column % 32 // 2])
        wanted = fp4(byte >> 4 if column % 2 else byte & 15, int(scales[expert, row, column // 32]))
        found = block[tuple(at - start for at, (start, _) in zip(place, bounds, strict=True))]
        assert float(found) == wanted, place


def test_every_number_of_mxfp4_under_every_exponent():
    blocks = np.tile(np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16), (1, 256, 1, 1))
    scales = np.tile(np.arange(256, dtype=np.uint8).reshape(1, 256, 1), (1, 1, 16))
    tensors, _ = Stored(w_blocks=blocks, w_scales=scales).dequantized(MXFP4())
    block = tensors.read("w", ((0, 1), (0, 512), (0, 256)))[0].astype(np.float64)
    nibbles = [half for byte in range(256) for half in (byte & 15, byte >> 4)]
    wanted = [[fp4(nibble, exponent) for exponent in range(255)] for nibble in nibbles]
    largest = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
    np.testing.assert_array_equal(block[:, :255], np.where(np.abs(wanted) > largest, np.copysign(np.inf, wanted), wanted))
    assert np.isnan(block[:, 255]).all()


@settings(max_examples=25)
@given(
    st.tuples(st.integers(1, 11), st.integers(1, 11)),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.sampled_from(["float32", "bfloat16", "float16", "float8_e8m0fnu"]),
    st.sampled_from(["float32", "bfloat16"]),
    st.data(),
)
def test_any_block_of_fp8_is_its_numbers_times_their_factors(shape, parts, scale_dtype, dtype, data):
    rng = np.random.default_rng(sum(shape))
    stored = rng.choice(np.delete(np.arange(256, dtype=np.uint8), [127, 255]), shape)
    grid = tuple(-(-size // part) for size, part in zip(shape, parts, strict=True))
    scales = rng.uniform(0.01, 2, grid).astype(scale_dtype)
    arrays = {"w.weight": stored.view(ml_dtypes.float8_e4m3fn), "w.weight_scale_inv": scales}
    tensors, layout = Stored(**arrays).dequantized(BlockFP8(parts), dtype)
    assert (layout.shapes, layout.dtypes) == ({"w.weight": shape}, {"w.weight": dtype})
    bounds = some_bounds(data, shape)
    block = tensors.read("w.weight", bounds)
    assert block.dtype.name == dtype
    wanted = np.array(
        [
            [fp8(int(stored[r, c])) * float(scales[r // parts[0], c // parts[1]]) for c in range(*bounds[1])]
            for r in range(*bounds[0])
        ],
        np.float32,
    )
    np.testing.assert_array_equal(block, wanted.astype(dtype))


def test_nan_in_fp8_stays_nan():
    arrays = {"w": np.array([[127, 255, 0x38]], np.uint8).view(ml_dtypes.float8_e4m3fn), "w_scale_inv": np.full((1, 1), 2, "f4")}
    tensors, _ = Stored(**arrays).dequantized(BlockFP8((128, 128)))
    np.testing.assert_array_equal(tensors.read("w", ((0, 1), (0, 3))), [[np.nan, np.nan, 2.0]])


@pytest.mark.parametrize("quantization", [None, BlockFP8((128, 128)), MXFP4()])
def test_other_tensors_are_read_as_they_are(quantization):
    plain = np.arange(12, dtype=ml_dtypes.bfloat16).reshape(3, 4)
    tensors, layout = Stored(norm=plain).dequantized(quantization)
    assert (layout.shapes, layout.dtypes) == ({"norm": (3, 4)}, {"norm": "bfloat16"})
    np.testing.assert_array_equal(tensors.read("norm", ((1, 3), (0, 2))), plain[1:, :2])


def test_gate_and_up_that_alternate_are_dequantized_once():
    experts, inputs, ffn = 2, 32, 3
    blocks, scales = mxfp4_parts(experts, 2 * ffn, inputs // 32)
    stored = Stored(w_blocks=blocks, w_scales=scales)
    tensors, _ = stored.dequantized(MXFP4())
    both = partial(Source, "w", (ffn, inputs), rows=2 * ffn, row_step=2, transposed=True, experts=experts)
    sources = tuple(both(first_row=row, expert=expert) for expert in range(experts) for row in (0, 1))
    rule = WeightRule(("gate_up",), sources, Packing.COLUMNS, experts)
    packed = read_block(tensors, rule, (experts, inputs, 1, 2 * ffn), (slice(None),) * 4, "bfloat16")
    whole = tensors.read("w", ((0, experts), (0, inputs), (0, 2 * ffn)))
    np.testing.assert_array_equal(packed[:, :, 0], np.concatenate([whole[..., 0::2], whole[..., 1::2]], axis=-1))
    assert stored.reads == ["w_blocks", "w_scales"] * experts * 2  # each expert for the parameter, and for `whole`


def test_quantized_tensors_are_only_what_config_says():
    blocks, scales = mxfp4_parts(1, 2, 1)
    stored = Stored(w_blocks=blocks, w_scales=scales, v=np.zeros((2, 2), ml_dtypes.float8_e4m3fn))
    for quantization, shown in ((None, {"w_blocks", "w_scales", "v"}), (MXFP4(), {"w", "v"})):
        assert set(stored.dequantized(quantization)[1].shapes) == shown


F8 = np.zeros((4, 6), ml_dtypes.float8_e4m3fn)


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"w": F8}, "w is quantized, but the checkpoint lacks its factors w_scale_inv"),
        (
            {"w": F8[:2], "w_scale_inv": np.zeros((2, 2), "f4")},
            r"is \[2, 2\], but w \[2, 6\] in blocks of \[2, 4\] needs \[1, 2\]",
        ),
        ({"w": F8, "w_scale_inv": np.zeros((2, 3), "f4")}, r"w_scale_inv is \[2, 3\].* needs \[2, 2\]"),
        ({"w": F8, "w_scale_inv": np.zeros((2, 2), "i4")}, "w_scale_inv is int32; read are float32"),
        ({"w": F8[0], "w_scale_inv": np.zeros((1,), "f4")}, r"w is \[6\], not a matrix"),
    ],
)
def test_fp8_parts_that_do_not_fit_are_named(arrays, complaint):
    with pytest.raises(CheckpointError, match=complaint):
        Stored(**arrays).dequantized(BlockFP8((2, 4)))


B, S = mxfp4_parts(2, 3, 4)


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"w_blocks": B}, "w is quantized, but the checkpoint lacks its factors w_scales"),
        ({"w_blocks": B, "w_scales": S[:, :, :3]}, r"w_scales is \[2, 3, 3\], but w_blocks \[2, 3, 4, 16\] needs \[2, 3, 4\]"),
        ({"w_blocks": B[..., :8], "w_scales": S}, r"w_blocks is \[2, 3, 4, 8\], not"),
        ({"w_blocks": B[0], "w_scales": S[0]}, r"w_blocks is \[3, 4, 16\], not"),
        ({"w_blocks": B.astype("i1"), "w_scales": S}, "w_blocks is int8, not uint8"),
        ({"w_blocks": B, "w_scales": S.astype("f4")}, "w_scales is float32, not uint8"),
    ],
)
def test_mxfp4_parts_that_do_not_fit_are_named(arrays, complaint):
    with pytest.raises(CheckpointError, match=complaint):
        Stored(**arrays).dequantized(MXFP4())
