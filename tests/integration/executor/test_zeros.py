"""Zeros that nobody wrote to take no memory; they are zeros all the same, and steps write to them in place."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxserve.executor.zeros import _hand_back, untouched_zeros

ROOT = Path(__file__).parents[3]
MEGABYTES = 64


def own_memory():
    """Megabytes of the process that nobody else has."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def shape_of(mesh, rows, spec):
    return jax.ShapeDtypeStruct((rows, 2**18), jnp.float32, sharding=NamedSharding(mesh, spec))


IN_PLACE = f"""
import jax
from jax.sharding import PartitionSpec
from sharding.mesh import make_mesh
from tests.integration.executor.test_zeros import own_memory, shape_of, untouched_zeros

shape = shape_of(make_mesh(1), {MEGABYTES}, PartitionSpec())
write = jax.jit(lambda array: array.at[3].set(1.0), donate_argnums=0).lower(shape).compile()
before = own_memory()
zeros = untouched_zeros(shape)
assert own_memory() - before < {MEGABYTES / 4}
pointer = zeros.unsafe_buffer_pointer()
written = jax.block_until_ready(write(zeros))
assert written.unsafe_buffer_pointer() == pointer
assert own_memory() - before < {MEGABYTES / 4}
assert written.sum() == 2**18
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only there memory is handed back")
def test_takes_memory_where_it_is_written():
    """In a process with XLA's usual emitters: those of other tests copy the array into its own place."""
    subprocess.run([sys.executable, "-c", IN_PLACE], env={**os.environ, "XLA_FLAGS": ""}, cwd=ROOT, check=True, timeout=300)


@pytest.mark.parametrize("rows", [0, 2, 7])
def test_zeros_on_every_device(rows):
    devices = jax.devices("cpu")[:2]
    mesh = Mesh(np.array(devices), ("x",))
    shape = shape_of(mesh, rows * len(devices), PartitionSpec("x"))
    zeros = untouched_zeros(shape)
    assert (zeros.shape, zeros.dtype, zeros.sharding) == (shape.shape, shape.dtype, shape.sharding)
    assert not np.asarray(zeros).any()


@pytest.mark.parametrize("size", [(), (5,), (1023,)])
def test_less_than_a_page(size):
    mesh = Mesh(np.array(jax.devices("cpu")[:1]), ("x",))
    zeros = untouched_zeros(jax.ShapeDtypeStruct(size, jnp.int8, sharding=NamedSharding(mesh, PartitionSpec())))
    assert zeros.shape == size
    assert not np.asarray(zeros).any()


@pytest.mark.skipif(sys.platform != "linux", reason="only there memory is handed back")
def test_what_is_beside_stays_as_it_is():
    page = mmap.PAGESIZE
    with mmap.mmap(-1, 4 * page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        content = np.frombuffer(memory, np.uint8)
        for start, size, zeros in [
            (0, page, range(1)),
            (1, 2 * page, range(1, 2)),
            (page - 1, 2 * page + 1, range(1, 3)),
            (9, 5, ()),
        ]:
            content[:] = 1
            _hand_back(content.ctypes.data + start, size)
            assert [bool(part.any()) for part in content.reshape(4, page)] == [number not in zeros for number in range(4)]
        del content
