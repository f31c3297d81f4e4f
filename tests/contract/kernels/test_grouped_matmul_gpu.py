"""grouped_matmul in Mosaic GPU: interpreted against the reference, its list of tiles, and compiled for an H100."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import SingleDeviceSharding

from jaxserve.aot.target import Target as CompileTarget
from jaxserve.executor.compile_cache import nothing_kept
from pallas_kernels.grouped_matmul import grouped_matmul, mosaic_gpu_support, reference
from pallas_kernels.grouped_matmul.mosaic_gpu_rows import list_tiles
from pallas_kernels.grouped_matmul.mosaic_gpu_tiles import SHARED_BYTES, choose_tiles, most_row_tiles
from pallas_kernels.grouped_matmul.problem import GroupedProblem
from pallas_kernels.parity.cases import GROUPED_CASES, GroupedCase
from pallas_kernels.parity.gate import TOLERANCE, check_grouped
from pallas_kernels.registry import Target

from .needs import MOSAIC, PLUGIN

BFLOAT16, FLOAT32 = jnp.dtype("bfloat16"), jnp.dtype("float32")
CASES = {case.name: case for case in GROUPED_CASES if case.tiny}
WIDER = (
    # More steps than there are slots, two warpgroups side by side, groups of several tiles, one that ends with the rows.
    GroupedCase("beside", (100, 0, 0, 3, 70), inputs=512, outputs=256),
    # Three times 64 columns in one warpgroup.
    GroupedCase("192 columns", (5, 60, 0, 9), nobody=7, outputs=192),
    # More columns than a panel has.
    GroupedCase("panels", (5, 9), outputs=13 * 64),
    # Tiles of 128 rows: two warpgroups below each other.
    GroupedCase("below", (600,), nobody=3, outputs=64),
)


@pytest.fixture(autouse=True)
def no_races(capfd):
    yield
    assert "RACE DETECTED" not in capfd.readouterr().out


@MOSAIC
@pytest.mark.parametrize(
    ("case", "dtype"),
    [(CASES["result of the dtype"], "float16"), (CASES["only nobody"], "bfloat16"), *((case, "bfloat16") for case in WIDER)],
    ids=lambda value: getattr(value, "name", value),
)
def test_case(case, dtype):
    result = check_grouped(case, dtype, "mosaic_gpu_interpreted")
    assert result.verdict == "pass", result


@MOSAIC
def test_groups_of_any_size():
    """One program for sizes that differ: every border within eight rows, tiles that the rows' end pushes back, nobody's rows."""
    rng = np.random.default_rng(0)
    call = jax.jit(partial(grouped_matmul, implementation="mosaic_gpu_interpreted"))
    weights = rng.standard_normal((4, 64, 64)).astype(BFLOAT16)
    for sizes in ((1, 2, 3, 74), (64, 0, 1, 15), (0, 72, 0, 7), (9, 16, 25, 30), (0, 0, 65, 0)):
        x = rng.standard_normal((80, 64)).astype(BFLOAT16) * BFLOAT16.type(0.05)
        x[sum(sizes) :] = np.nan
        group_sizes = np.asarray(sizes, np.int32)
        got = np.asarray(call(x, weights, group_sizes)).astype(np.float64)
        want = reference.grouped_matmul(x, weights, group_sizes)
        np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE["float32"].max_abs)


@MOSAIC
@pytest.mark.parametrize("tile", [64, 128])
def test_tiles_have_every_row_once(tile):
    groups, rows = 6, 320
    listed = jax.jit(partial(list_tiles, rows=rows, tile=tile))

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(st.lists(st.integers(0, rows), min_size=groups, max_size=groups))
    def run(borders: list[int]) -> None:
        sizes = np.diff([0, *sorted(borders)]).astype(np.int32)
        found = [np.asarray(part) for part in listed(sizes)]
        (count,) = found.pop()
        assert count <= most_row_tiles(rows, groups, tile) == len(found[0])
        owner = np.full(rows, -1)
        for group, at, first, own in zip(*(part[:count] for part in found), strict=True):
            assert at % 8 == 0
            assert 0 <= at <= first < first + own <= at + tile <= rows
            assert (owner[first : first + own] == -1).all()
            owner[first : first + own] = group
        assert owner.tolist() == [*np.repeat(np.arange(groups), sizes), *[-1] * (rows - sizes.sum())]
        # A group begins up to seven rows before its first one.
        assert count <= sum(-(-(size + 7) // tile) for size in sizes if size)

    run()


def problem(**changes):
    whole: dict[str, Any] = {"rows": 512, "groups": 128, "inputs": 2048, "outputs": 1536}
    whole |= {"dtype": BFLOAT16, "result_dtype": FLOAT32} | changes
    return GroupedProblem(**{"expected_rows": whole["rows"]} | whole)


@pytest.mark.parametrize(
    ("changes", "shape", "panel"),
    [
        ({}, (64, 256), 6),
        ({"outputs": 5760}, (64, 192), 10),
        ({"outputs": 384}, (64, 192), 2),
        ({"outputs": 128}, (64, 128), 1),
        ({"outputs": 64}, (64, 64), 1),
        ({"rows": 65535}, (64, 256), 6),
        ({"rows": 65536}, (128, 256), 6),
        ({"rows": 65536, "expected_rows": 8192}, (64, 256), 6),
        ({"rows": 65536, "groups": 8, "outputs": 28672}, (128, 256), 8),
        ({"rows": 65536, "outputs": 2880, "result_dtype": BFLOAT16}, (128, 192), 5),
    ],
)
def test_tiles(changes, shape, panel):
    tiles = choose_tiles(problem(**changes))
    assert (tiles.rows, tiles.width, tiles.panel) == (*shape, panel)
    assert tiles.groups <= 2  # with the one that loads they share the registers
    assert tiles.slots >= 3
    step = (tiles.rows + tiles.width) * 64 * 2
    staged = tiles.groups * 64 * 64 * problem(**changes).result_dtype.itemsize
    assert tiles.slots * step + staged <= SHARED_BYTES


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"result_dtype": BFLOAT16}, None),
        ({"dtype": jnp.dtype("float16")}, None),
        ({"dtype": FLOAT32}, "rows and weights must be bfloat16 or float16, not float32"),
        ({"result_dtype": jnp.dtype("float16")}, "the result must be bfloat16 like the rows, or float32, not float16"),
        ({"inputs": 1440}, "the width of rows must be a multiple of 64, not 1440"),
        ({"outputs": 96}, "the width of results must be a multiple of 64, not 96"),
        ({"layout": "panels", "scheme": "int8"}, "weights must lie plain, or in words"),
    ],
)
def test_limits(changes, reason):
    assert mosaic_gpu_support.supports(problem(**changes)) == reason


@MOSAIC
@PLUGIN
@pytest.mark.parametrize(
    ("rows", "groups", "widths", "dtype", "result"),
    [
        (512, 128, (2048, 1536), "bfloat16", "float32"),
        pytest.param(65536, 128, (768, 2048), "bfloat16", "bfloat16", marks=pytest.mark.extended),
        (4, 32, (2880, 5760), "float16", "float16"),
        (65536, 8, (4096, 28672), "float16", "float32"),
    ],
)
def test_compiles_for_an_h100(rows, groups, widths, dtype, result):
    with nothing_kept():
        device = CompileTarget.parse("h100").devices()[0]
        array = partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(device))
        call = partial(grouped_matmul, dtype=jnp.dtype(result), target=Target.of(device))
        arrays = (
            array((rows, widths[0]), jnp.dtype(dtype)),
            array((groups, *widths), jnp.dtype(dtype)),
            array((groups,), jnp.int32),
        )
        lowered = jax.jit(lambda x, weights, sizes: (call(x, weights, sizes), call(x, weights, sizes + 0))).lower(*arrays)
        assert lowered.as_text().count("mosaic_gpu_v2") == 1  # both calls share the kernel
        compiled = lowered.compile()
    # Nothing is copied but rows that are less than a tile.
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 2 * 65536 * 64
