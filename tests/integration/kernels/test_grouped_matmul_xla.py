"""What XLA makes of grouped_matmul: how much work, which dot, no copy of all weights, and the same result on every device."""

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from pallas_kernels.grouped_matmul import grouped_matmul as choose
from pallas_kernels.grouped_matmul import reference
from pallas_kernels.grouped_matmul.xla import block_rows, last_trips

grouped_matmul = partial(choose, implementation="xla")


@pytest.mark.parametrize(
    ("rows", "groups", "block"),
    [(0, 8, 8), (64, 128, 8), (512, 128, 8), (2048, 128, 16), (2047, 128, 8), (1024, 8, 128), (65536, 8, 128)],
)
def test_rows_of_a_trip(rows, groups, block):
    assert block_rows(rows, groups) == block


@pytest.mark.parametrize("sizes", [(0, 0, 0), (1, 0, 1), (8, 9, 0, 7), (100,), (0, 1, 16, 17)])
def test_no_more_trips_than_blocks_begun(sizes):
    trips = last_trips(jnp.asarray(sizes, jnp.int32), 8)
    assert trips.dtype == jnp.int32
    assert int(trips[-1]) == sum(-(-size // 8) for size in sizes)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_trip_reads_one_matrix_and_converts_none(dtype):
    shape = jax.ShapeDtypeStruct
    arrays = shape((64, 48), jnp.dtype(dtype)), shape((16, 48, 96), jnp.dtype(dtype)), shape((16,), jnp.int32)
    compiled = jax.jit(grouped_matmul).lower(*arrays).compile()
    text = compiled.as_text()
    assert text is not None
    # No matrix is converted, and none is left behind by a trip: there is room for one and the result, not for all.
    as_stored = {"bfloat16": {"bf16", "u16"}, "float32": {"f32", "u32"}}[dtype]
    assert set(re.findall(r"= (\w+)\[(?:16,|1,)?48,96\]", text)) <= as_stored
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 2 * 64 * 96 * 4 + 2 * 48 * 96 * 4


def test_devices_multiply_their_own_groups():
    """Experts divided over devices, each with its rows first: what is left to nobody is 0, so that the sum is everything."""
    devices, groups = 4, 8
    mesh = jax.make_mesh((devices,), ("expert",), devices=jax.devices()[:devices], axis_types=(jax.sharding.AxisType.Auto,))
    rng = np.random.default_rng(0)
    sizes = np.asarray([3, 0, 7, 1, 0, 0, 12, 2], np.int32)
    x = rng.standard_normal((25, 16)).astype(np.float32)
    weights = rng.standard_normal((groups, 16, 24)).astype(np.float32)

    def own(x, weights, sizes, mine):
        before = jnp.cumsum(sizes)[jax.lax.axis_index("expert") * mine.shape[0]] - mine[0]
        out = grouped_matmul(jnp.roll(x, -before, axis=0), weights, mine)
        return jax.lax.psum(jnp.roll(out, before, axis=0), "expert")

    everywhere, divided = PartitionSpec(), PartitionSpec("expert")
    call = jax.shard_map(
        own, mesh=mesh, in_specs=(everywhere, divided, everywhere, divided), out_specs=everywhere, check_vma=False
    )
    got = np.asarray(jax.jit(call)(x, weights, sizes, sizes))
    np.testing.assert_allclose(got, reference.grouped_matmul(x, weights, sizes), rtol=0, atol=2e-5)


@pytest.mark.parametrize("expected", [0, 3, 64])
def test_expecting_other_rows_changes_nothing(expected):
    rng = np.random.default_rng(0)
    sizes = np.asarray([30, 0, 11], np.int32)
    x = rng.standard_normal((64, 16)).astype(np.float32)
    weights = rng.standard_normal((3, 16, 24)).astype(np.float32)
    got = np.asarray(grouped_matmul(*map(jnp.asarray, (x, weights, sizes)), expected_rows=expected))
    np.testing.assert_allclose(got, reference.grouped_matmul(x, weights, sizes), rtol=0, atol=2e-5)


def test_layers_share_a_trace():
    x, weights, sizes = jnp.zeros((8, 4)), jnp.zeros((3, 4, 4)), jnp.zeros(3, jnp.int32)
    call = partial(grouped_matmul, weights=weights, group_sizes=sizes)
    text = str(jax.make_jaxpr(lambda x: call(call(x)))(x))
    assert text.count("while[") == 1
