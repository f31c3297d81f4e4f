"""matmul in Mosaic GPU: interpreted against the reference, its tiles, and compiled for an H100."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from jaxserve.aot.target import Target as CompileTarget
from jaxserve.executor.compile_cache import nothing_kept
from pallas_kernels.matmul import Matrix, Words, matmul, mosaic_gpu_support, pack, packed_shape, reference
from pallas_kernels.matmul.mosaic_gpu_numbers import Numbers
from pallas_kernels.matmul.mosaic_gpu_tiles import SHARED_BYTES, choose_tiles
from pallas_kernels.matmul.problem import MatmulProblem
from pallas_kernels.parity.cases import MATMUL_CASES
from pallas_kernels.parity.gate import TOLERANCE, check_matmul
from pallas_kernels.quantization import SCHEMES, Float8Weight, FourBit, Scheme
from pallas_kernels.quantization.four_bit import NUMBERS

from . import ptx
from .needs import MOSAIC, PLUGIN

BFLOAT16 = jnp.dtype("bfloat16")
INTERPRETED = "mosaic_gpu_interpreted"
CASES = [case for case in MATMUL_CASES if case.layout == "words"]


@pytest.fixture(autouse=True)
def no_races(capfd):
    yield
    assert "RACE DETECTED" not in capfd.readouterr().out


@MOSAIC
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case):
    result = check_matmul(case, "bfloat16", INTERPRETED)
    assert result.verdict == "pass", result


@MOSAIC
def test_every_number_is_widened_exactly():
    """int8 has no -128, but the kernel does; rows of one 1 each pick single numbers out."""
    values = np.resize(np.arange(-128, 128), (128, 64)).astype(np.int8)
    scheme = SCHEMES["int8"]
    layout = Words.of((0,), values.shape, scheme)
    held = pack(jnp.zeros(values.shape), layout, scheme)
    matrix = jax.tree.unflatten(jax.tree.structure(held), (layout.arrange(jnp.asarray(values)), np.ones(64, np.float32)))
    got = jax.jit(partial(matmul, implementation=INTERPRETED))(np.eye(128).astype(BFLOAT16), matrix)
    np.testing.assert_array_equal(got, values)


@MOSAIC
@pytest.mark.parametrize(
    "scheme",
    [
        FourBit(group=32, zeros=True),
        pytest.param(FourBit(group=64), marks=pytest.mark.extended),
        FourBit(group=256, zeros=True),
        FourBit("fp4", 32),
    ],
    ids=lambda scheme: f"{scheme.numbers}-{scheme.group}",
)
def test_groups_of_codes(scheme):
    """Every code, with scales and whole zeros that differ between groups and outputs; more steps than a ring has slots."""
    rng = np.random.default_rng(0)
    shape = (2560, 192)
    layout = Words.of((0,), shape, scheme)
    codes = rng.integers(0, 16, shape).astype(np.uint8)
    grid = rng.standard_normal((shape[0] // scheme.group, shape[1])) * (0.1 / shape[0] ** 0.5)
    scales = (grid.astype(np.float32), rng.integers(-8, 9, grid.shape).astype(np.float32))[: 1 + scheme.zeros]
    matrix = Matrix(layout.arrange(jnp.asarray(codes)), tuple(map(jnp.asarray, scales)), layout, scheme)
    np.testing.assert_array_equal(layout.restore(matrix.values), codes)
    x = rng.standard_normal((5, shape[0])).astype(BFLOAT16)
    got = jax.jit(partial(matmul, implementation=INTERPRETED))(x, matrix)
    zeros = np.repeat(scales[1], scheme.group, axis=0) if scheme.zeros else 0.0
    plain = (np.array(NUMBERS[scheme.numbers])[codes] - zeros) * np.repeat(scales[0].astype(np.float64), scheme.group, axis=0)
    np.testing.assert_allclose(got, reference.matmul(x, plain), rtol=0, atol=TOLERANCE["float32"].max_abs)


@MOSAIC
def test_float8_in_blocks():
    """Every number but NaN, the smallest ones too, with scales that differ between groups and outputs."""
    rng = np.random.default_rng(0)
    scheme, shape = Float8Weight(128), (2560, 64)
    layout = Words.of((0,), shape, scheme)
    bits = np.resize(np.delete(np.arange(256), (127, 255)), shape).astype(np.uint8)
    values = bits.view(jnp.float8_e4m3fn)
    scales = (rng.uniform(0.5, 2, (shape[0] // 128, shape[1])) * 2e-5).astype(np.float32)
    matrix = Matrix(layout.arrange(jnp.asarray(values)), jnp.asarray(scales), layout, scheme)
    np.testing.assert_array_equal(np.asarray(layout.restore(matrix.values)).view(np.uint8), bits)
    plain = values.astype(np.float64) * np.repeat(scales.astype(np.float64), 128, axis=0)
    np.testing.assert_allclose(matrix.plain(), plain, rtol=1e-6)
    call = jax.jit(partial(matmul, implementation=INTERPRETED))
    x = rng.standard_normal((5, shape[0])).astype(BFLOAT16)
    np.testing.assert_allclose(call(x, matrix), reference.matmul(x, plain), rtol=0, atol=TOLERANCE["float32"].max_abs)
    # Single numbers, which sums of large ones would hide.
    x = np.zeros((254, shape[0]), BFLOAT16)
    x[np.arange(254), np.arange(254)] = 1
    np.testing.assert_allclose(call(x, matrix), plain[:254], rtol=1e-6)
    want = x.astype(np.float64) @ plain
    np.testing.assert_allclose(jax.jit(partial(matmul, implementation="xla"))(x, matrix), want, rtol=2**-8)


@MOSAIC
def test_results_are_rounded_once_and_rows_do_not_matter_to_others():
    rng = np.random.default_rng(0)
    numbers, int8 = jnp.asarray(rng.standard_normal((256, 64)), jnp.float32), SCHEMES["int8"]
    matrix = pack(numbers, Words.of((0,), numbers.shape, int8), int8)
    x = rng.standard_normal((11, 256)).astype(BFLOAT16)
    call = jax.jit(partial(matmul, implementation=INTERPRETED, summed=BFLOAT16))
    whole, alone = call(x, matrix), call(np.where((np.arange(11) == 6)[:, None], x, np.nan).astype(BFLOAT16), matrix)
    np.testing.assert_array_equal(alone[6], whole[6])
    exact = reference.matmul(x, np.asarray(matrix.plain(), np.float64))
    np.testing.assert_allclose(whole, exact, rtol=2**-8, atol=1e-6)
    np.testing.assert_array_equal(whole, np.asarray(whole).astype(BFLOAT16))
    used = call(x, replace(matrix, used_rows=jnp.int32(7)))
    np.testing.assert_array_equal(used, np.where(np.arange(11)[:, None] < 7, whole, 0))


def problem(**changes):
    whole: dict[str, Any] = {"rows": 64, "inputs": 4096, "outputs": 6144, "dtype": BFLOAT16, "layout": "words", "scheme": "int8"}
    return MatmulProblem(**whole | changes)


@pytest.mark.parametrize(
    ("changes", "tile", "pieces"),
    [
        ({}, (128, 64), 96),
        ({"rows": 1}, (128, 8), 96),
        ({"outputs": 4096}, (128, 64), 128),
        ({"outputs": 4096, "inputs": 14336}, (128, 64), 128),
        ({"outputs": 28672}, (128, 64), 224),
        ({"outputs": 64, "inputs": 2048}, (64, 64), 4),
        ({"outputs": 192, "inputs": 128}, (64, 64), 3),
        ({"outputs": 16032}, (128, 64), 126),
        ({"outputs": 96, "inputs": 512}, (64, 64), 2),
        ({"outputs": 192, "inputs": 896}, (64, 64), 3),
        ({"rows": 128}, (128, 128), 96),
        ({"rows": 129}, (128, 72), 96),
        ({"rows": 1024}, (128, 128), 384),
    ],
)
def test_tiles(changes, tile, pieces):
    asked = problem(**changes)
    tiles = choose_tiles(asked, Numbers(8))
    assert (tiles.outputs, tiles.rows) == tile
    assert -(-asked.outputs // tiles.outputs) * tiles.row_tiles * tiles.splits == pieces
    assert tiles.splits * tiles.steps * 128 == asked.inputs
    assert tiles.rows * tiles.row_tiles >= asked.rows
    assert tiles.rows % tiles.staged == 0
    weights = tiles.outputs * 128 * tiles.slots
    assert weights >= 25_000  # what is on its way to a multiprocessor, by Little's law
    staged = tiles.outputs * tiles.staged * 4
    assert weights + tiles.slots * tiles.rows * 256 + staged <= SHARED_BYTES


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"rows": 1024}, None),
        ({"layout": "panels"}, "the matrix must lie in words, not panels"),
        ({"scheme": "w8a8"}, "numbers must be of int8, int4, fp8_weight, not w8a8"),
        ({"dtype": jnp.dtype("float32")}, "rows must be bfloat16, not float32"),
        ({"rows": 1025}, "1024 rows at most, not 1025: from there on a copy in 16 bits costs less"),
        ({"rows": 8192, "scheme": "int4", "codes": FourBit()}, None),
        ({"scheme": "int4", "codes": FourBit("fp4", 32)}, None),
        ({"scheme": "int4", "codes": FourBit("fp4", 32, zeros=True)}, "codes of fp4 must have no zeros"),
        (
            {"scheme": "int4", "codes": FourBit(group=16)},
            "groups must have 32, 64 or a multiple of 128 inputs, not 16",
        ),
        ({"inputs": 192}, "inputs must be a multiple of 128, not 192"),
        ({"outputs": 96}, None),
        ({"outputs": 100}, "outputs must be a multiple of 8, not 100"),
        ({"outputs": 56}, "outputs must be 64 at least, not 56"),
        ({"inputs": 384, "scheme": "int4", "codes": FourBit(group=256)}, "groups of 256 inputs must divide the inputs, 384"),
    ],
)
def test_limits(changes, reason):
    assert mosaic_gpu_support.supports(problem(**changes)) == reason


@pytest.fixture
def compiled(capfd, monkeypatch):
    """Compiles both of two products by a matrix, which share their kernel, for an H100; what there is, and what was printed."""
    for what in ("PTX", "PTXAS"):
        monkeypatch.setenv(f"MOSAIC_GPU_DUMP_{what}", "1")

    def run(rows: int, inputs: int, outputs: int, held: Scheme, summed: Any) -> tuple[jax.stages.Compiled, str]:
        device = CompileTarget.parse("h100").devices()[0]
        array = partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(device))
        shape = inputs, outputs
        matrix = packed_shape(array(shape, BFLOAT16), Words.of((0,), shape, held), held)
        matrix = jax.tree.map(lambda part: array(part.shape, part.dtype), matrix)
        call = partial(matmul, summed=summed)
        lowered = jax.jit(lambda x, matrix: (call(x, matrix), call(x * 2, matrix))).lower(array((rows, inputs), BFLOAT16), matrix)
        assert lowered.as_text().count("mosaic_gpu_v2") == 1
        with nothing_kept():
            program = lowered.compile()
        printed = capfd.readouterr()
        return program, printed.out + printed.err

    return run


@MOSAIC
@PLUGIN
@pytest.mark.parametrize(
    ("rows", "widths", "scheme", "summed"),
    [
        (8, (4096, 6144), SCHEMES["int8"], BFLOAT16),
        pytest.param(64, (4096, 4096), SCHEMES["int8"], BFLOAT16, marks=pytest.mark.extended),
        (128, (1024, 128), SCHEMES["int8"], None),
        (1000, (512, 192), SCHEMES["int8"], BFLOAT16),
        pytest.param(64, (4096, 4096), FourBit(), BFLOAT16, marks=pytest.mark.extended),
        (128, (4096, 6144), FourBit(zeros=True), BFLOAT16),
        (64, (1024, 128), FourBit(group=32, zeros=True), BFLOAT16),
        pytest.param(64, (1024, 16032), FourBit(), BFLOAT16, marks=pytest.mark.extended),
        pytest.param(64, (1024, 72), SCHEMES["int8"], BFLOAT16, marks=pytest.mark.extended),
        (64, (4096, 4096), Float8Weight(128), BFLOAT16),
        (64, (4096, 4096), FourBit("fp4", 32), BFLOAT16),
    ],
)
def test_compiles_for_an_h100(compiled, rows, widths, scheme, summed):
    program, printed = compiled(rows, *widths, scheme, summed)
    assert [used.spilled for used in ptx.usage(printed).values()] == [0]
    assert "are serialized" not in printed  # ptxas's word for products that it lets run one by one
    # Sums and rows, and not a number of the matrix again.
    memory = program.memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes <= 2 * 4 * 4 * rows * widths[1] + 4 * rows * widths[0] + 4096
    text = ptx.kernel(printed, "quantized_matmul")
    block = ptx.loop(text, "wgmma.mma_async")
    # A thread's 64 numbers of a step come in four loads, or two of codes, and move to no other thread.
    assert block.count("ldmatrix") == Numbers.of(scheme).bits // 2
    assert "shfl" not in block
