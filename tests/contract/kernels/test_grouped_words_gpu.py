"""grouped_matmul in Mosaic GPU over narrow numbers: interpreted against the reference, its tiles, and compiled for an H100."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from jaxserve.aot.target import Target as CompileTarget
from jaxserve.executor.compile_cache import nothing_kept
from pallas_kernels.grouped_matmul import grouped_matmul, mosaic_gpu_support, reference
from pallas_kernels.grouped_matmul.mosaic_gpu_tiles import SHARED_BYTES
from pallas_kernels.grouped_matmul.mosaic_gpu_words_tiles import choose_tiles
from pallas_kernels.grouped_matmul.problem import GroupedProblem
from pallas_kernels.matmul import Matrix, Words, packed_shape
from pallas_kernels.matmul.mosaic_gpu_numbers import Numbers
from pallas_kernels.parity.cases import GROUPED_CASES
from pallas_kernels.parity.gate import MXFP4, TOLERANCE, check_grouped
from pallas_kernels.quantization import SCHEMES, Float8Weight, FourBit, Scheme
from tests.support.tiers import sampled

from . import ptx
from .needs import MOSAIC, PLUGIN

BFLOAT16, FLOAT32 = jnp.dtype("bfloat16"), jnp.dtype("float32")
INTERPRETED = "mosaic_gpu_interpreted"
INT8 = SCHEMES["int8"]


@pytest.fixture(autouse=True)
def no_races(capfd):
    yield
    assert "RACE DETECTED" not in capfd.readouterr().out


@MOSAIC
@pytest.mark.parametrize(
    "case", sampled([case for case in GROUPED_CASES if case.words and case.tiny], 3), ids=lambda case: case.name
)
def test_case(case):
    result = check_grouped(case, "bfloat16", INTERPRETED)
    assert result.verdict == "pass", result


def stack(values: np.ndarray, scales: Any, scheme: Scheme) -> Matrix:
    """Matrices [X, I, O] of a scheme's values."""
    layout = Words.of((0,), values.shape[1:], scheme)
    arranged = jax.vmap(layout.arrange)(jnp.asarray(values))
    return Matrix(arranged, jax.tree.map(jnp.asarray, scales), layout, scheme, stacked=True)


@MOSAIC
def test_every_number_of_mxfp4_is_widened_exactly():
    """Rows of one 1 each pick single numbers out, under powers of two that differ between groups and outputs."""
    rng = np.random.default_rng(0)
    codes = np.resize(np.arange(16), (2, 160, 64)).astype(np.uint8)
    scales = np.exp2(rng.integers(-20, 20, (2, 5, 64))).astype(np.float32)
    matrices = stack(codes, (scales,), MXFP4)
    plain = MXFP4.table()[codes] * np.repeat(scales, 32, axis=1)
    np.testing.assert_array_equal(matrices.plain(), plain)
    rows = np.tile(np.eye(160), (2, 1)).astype(BFLOAT16)
    got = jax.jit(partial(grouped_matmul, implementation=INTERPRETED))(rows, matrices, np.asarray([160, 160], np.int32))
    np.testing.assert_array_equal(got, plain.reshape(320, 64))


@MOSAIC
@pytest.mark.parametrize("scheme", [FourBit(group=32, zeros=True), FourBit(group=256, zeros=True)], ids=lambda each: each.group)
def test_codes_with_zeros_and_groups_without_rows(scheme):
    """One program for sizes that differ. Matrices of groups without rows are NaN: they have no part in anything."""
    rng = np.random.default_rng(0)
    inputs = 288 if scheme.group == 32 else 512
    codes = rng.integers(0, 16, (3, inputs, 64)).astype(np.uint8)
    grid = (rng.standard_normal((3, inputs // scheme.group, 64)) * (0.1 / inputs**0.5)).astype(np.float32)
    zeros = rng.integers(-8, 9, grid.shape).astype(np.float32)
    plain = (codes.astype(np.float64) - 8 - np.repeat(zeros, scheme.group, axis=1)) * np.repeat(grid, scheme.group, axis=1)
    call = jax.jit(partial(grouped_matmul, implementation=INTERPRETED))
    for sizes in ((1, 0, 15), (0, 0, 9), (7, 12, 0), (0, 0, 0)):
        x = rng.standard_normal((20, inputs)).astype(BFLOAT16)
        x[sum(sizes) :] = np.nan
        unused = np.asarray(sizes)[:, None, None] == 0
        matrices = stack(codes, (np.where(unused, np.nan, grid), zeros), scheme)
        want = reference.grouped_matmul(x, plain, np.asarray(sizes))
        got = call(x, matrices, np.asarray(sizes, np.int32))
        np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE["float32"].max_abs)


@MOSAIC
def test_float8_with_a_factor_an_output():
    """Every number but NaN; and a result in the rows' dtype, which is rounded once."""
    rng, scheme = np.random.default_rng(0), Float8Weight()
    values = np.resize(np.delete(np.arange(256), (127, 255)), (2, 256, 64)).astype(np.uint8).view(jnp.float8_e4m3fn)
    scales = (rng.uniform(0.5, 2, (2, 1, 64)) * 2e-4).astype(np.float32)
    x, sizes = rng.standard_normal((9, 256)).astype(BFLOAT16), np.asarray([4, 5], np.int32)
    call = jax.jit(partial(grouped_matmul, dtype=BFLOAT16, implementation=INTERPRETED))
    got = np.asarray(call(x, stack(values, scales, scheme), sizes))
    want = reference.grouped_matmul(x, values.astype(np.float64) * scales, sizes)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=2**-8, atol=1e-6)


def problem(**changes: Any) -> GroupedProblem:
    whole: dict[str, Any] = {"rows": 512, "groups": 128, "inputs": 2048, "outputs": 1536, "layout": "words", "scheme": "int8"}
    whole |= {"dtype": BFLOAT16, "result_dtype": BFLOAT16} | changes
    return GroupedProblem(**{"expected_rows": whole["rows"]} | whole)


@pytest.mark.parametrize(
    ("changes", "scheme", "tile", "steps"),
    [
        ({}, INT8, (16, 128), 16),
        ({"rows": 8}, INT8, (8, 128), 16),
        ({"rows": 65536}, INT8, (128, 128), 16),
        ({"rows": 65536}, Float8Weight(128), (128, 128), 16),
        ({"rows": 65536}, FourBit(group=32), (64, 128), 16),
        ({"rows": 65536, "expected_rows": 1024}, INT8, (24, 128), 16),
        ({"rows": 256, "groups": 32, "inputs": 2880, "outputs": 5760}, MXFP4, (24, 128), 23),
        ({"rows": 256, "groups": 32, "inputs": 2880, "outputs": 2880}, MXFP4, (24, 64), 23),
    ],
)
def test_tiles(changes, scheme, tile, steps):
    asked, numbers = problem(**changes), Numbers.of(scheme)
    tiles = choose_tiles(asked, numbers)
    assert (tiles.rows, tiles.outputs) == tile
    assert tiles.steps == steps
    assert tiles.rows % tiles.staged == 0
    words = tiles.outputs * 16 * numbers.bits
    assert tiles.slots * words >= 25_000  # what is on its way to a multiprocessor, by Little's law
    factors = 0 if numbers.group is None else numbers.factors * tiles.outputs * 4
    staged = tiles.outputs * tiles.staged * 2
    assert tiles.slots * (words + factors + tiles.rows * 256) + staged <= SHARED_BYTES


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"rows": 65536}, None),
        ({"inputs": 2880}, None),
        ({"result_dtype": FLOAT32}, None),
        ({"scheme": "fp8_weight", "codes": Float8Weight()}, None),
        ({"scheme": "fp8_weight", "codes": Float8Weight(64)}, "blocks of float8 must have 128 inputs, not 64"),
        ({"scheme": "int4", "codes": FourBit("fp4", 16)}, "groups must have 32, 64 or a multiple of 128 inputs, not 16"),
        ({"scheme": "w8a8"}, "numbers must be of int8, int4, fp8_weight, not w8a8"),
        ({"dtype": jnp.dtype("float16")}, "rows must be bfloat16, not float16"),
        ({"result_dtype": jnp.dtype("float16")}, "the result must be bfloat16 like the rows, or float32, not float16"),
        ({"inputs": 96}, "there must be 128 inputs or more, not 96"),
        ({"outputs": 96}, "outputs must be a multiple of 64, not 96"),
    ],
)
def test_limits(changes, reason):
    assert mosaic_gpu_support.supports(problem(**changes)) == reason


@MOSAIC
@PLUGIN
@pytest.mark.parametrize(
    ("rows", "groups", "widths", "scheme", "result"),
    [
        (512, 128, (2048, 1536), Float8Weight(128), BFLOAT16),  # Qwen3-30B-A3B, a step of 64 tokens
        pytest.param(65536, 128, (2048, 1536), Float8Weight(128), BFLOAT16, marks=pytest.mark.extended),
        pytest.param(256, 256, (7168, 4096), Float8Weight(128), BFLOAT16, marks=pytest.mark.extended),  # DeepSeek-V3
        (256, 32, (2880, 5760), MXFP4, BFLOAT16),  # gpt-oss-20b
        pytest.param(32768, 32, (2880, 2880), MXFP4, BFLOAT16, marks=pytest.mark.extended),
        (8, 128, (768, 2048), FourBit(group=128), BFLOAT16),
        (65536, 128, (768, 2048), FourBit(group=32, zeros=True), FLOAT32),
        (65536, 8, (4096, 28672), INT8, BFLOAT16),
    ],
)
def test_compiles_for_an_h100(capfd, monkeypatch, rows, groups, widths, scheme, result):
    for what in ("PTX", "PTXAS"):
        monkeypatch.setenv(f"MOSAIC_GPU_DUMP_{what}", "1")
    device = CompileTarget.parse("h100").devices()[0]
    array = partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(device))
    stacked = packed_shape(array((groups, *widths), BFLOAT16), Words.of((0,), widths, scheme), scheme, stacked=True)
    stacked = jax.tree.map(lambda part: array(part.shape, part.dtype), stacked)
    call = partial(grouped_matmul, dtype=result)
    arrays = array((rows, widths[0]), BFLOAT16), stacked, array((groups,), jnp.int32)
    lowered = jax.jit(lambda x, weights, sizes: (call(x, weights, sizes), call(x, weights, sizes + 0))).lower(*arrays)
    assert lowered.as_text().count("mosaic_gpu_v2") == 1  # both calls share the kernel
    with nothing_kept():
        compiled = lowered.compile()
    outputs = capfd.readouterr()
    printed = outputs.out + outputs.err
    assert [used.spilled for used in ptx.usage(printed).values()] == [0]
    assert "are serialized" not in printed  # ptxas's word for products that it lets run one by one
    memory = compiled.memory_analysis()
    assert memory is not None
    # No number of a matrix: rows that are less than a tile or a block, and lists of tiles.
    padded = 2 * max(rows, 128) * (-(-widths[0] // 128) * 128) if widths[0] % 128 or rows < 128 else 0
    assert memory.temp_size_in_bytes <= padded + 64 * (rows + 8 * groups)
    block = ptx.loop(ptx.kernel(printed, "quantized_grouped_matmul"), "wgmma.mma_async")
    # A thread's 64 numbers of a step come in four loads, or two of codes, and move to no other thread.
    assert block.count("ldmatrix") == Numbers.of(scheme).bits // 2
    assert "shfl" not in block
