"""matmul by matrices in words that several devices hold a part of each: the Mosaic kernel, interpreted on each of two.

Races are looked for where one device runs the kernel: jax's interpreter orders nothing between the warpgroups of a second one.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from pallas_kernels.matmul import Division, Words, matmul, pack, reference
from pallas_kernels.parity.gate import TOLERANCE
from pallas_kernels.quantization import SCHEMES, Float8Weight, FourBit, outputs_of
from sharding import make_mesh
from tests.support.tiers import tiered

from .needs import MOSAIC

BFLOAT16 = jnp.dtype("bfloat16")
INTERPRETED = "mosaic_gpu_interpreted"
CASES = (
    (FourBit(group=64), (0,), (256, 2, 96), (None, "tensor", None)),
    (FourBit(group=128), (0, 1), (2, 256, 64), ("tensor", None, None)),
    (SCHEMES["int8"], (0,), (128, 144), (None, "tensor")),
    (SCHEMES["int8"], (0, 1), (2, 128, 64), ("tensor", None, None)),
    (Float8Weight(128), (0, 1), (2, 128, 72), ("tensor", None, None)),
)


@pytest.fixture
def devices_end_together(monkeypatch):
    """A device that ends is asked whether any has barriers left, while the others may still use theirs."""
    callbacks = import_module("jax._src.pallas.mosaic_gpu.interpret.gpu_callbacks")
    none_allocated = callbacks._assert_no_barriers_allocated

    def once_all_ended(token):
        callbacks._get_shared_memory().barrier.wait()
        return none_allocated(token)

    monkeypatch.setattr(callbacks, "_assert_no_barriers_allocated", once_all_ended)


@MOSAIC
@pytest.mark.usefixtures("devices_end_together")
@pytest.mark.parametrize(
    ("scheme", "inputs", "shape", "spec", "summed"),
    # Sums of either dtype where outputs are divided, and where inputs are.
    tiered(
        [(*case, summed) for case in CASES for summed in (None, BFLOAT16)],
        [(*case, None if index in (1, 2) else BFLOAT16) for index, case in enumerate(CASES)],
    ),
    ids=str,
)
def test_several_devices_multiply_by_their_parts(scheme, inputs, shape, spec, summed):
    """Each by its own outputs, or by its own inputs, whose sums they add."""
    mesh = make_mesh(2)
    parameter = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    parameter = jax.device_put(parameter, NamedSharding(mesh, PartitionSpec(*spec)))
    layout = Words.of(inputs, shape, scheme, Division(mesh.abstract_mesh, PartitionSpec(*spec)))
    matrix = pack(parameter, layout, scheme)
    specs = matrix.specs(PartitionSpec(*spec))
    matrix = jax.device_put(matrix, jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs))
    assert len({shard.index for shard in matrix.values.addressable_shards}) == 2
    x = np.random.default_rng(1).standard_normal((5, matrix.inputs)).astype(BFLOAT16)
    x = jax.device_put(x, NamedSharding(mesh, PartitionSpec()))
    program = jax.jit(partial(matmul, implementation=INTERPRETED, summed=summed)).lower(x, matrix).compile()
    assert ("all-reduce" in str(program.as_text())) == (spec[0] is not None)
    plain = np.asarray(matrix.plain(), np.float64).reshape(matrix.inputs, matrix.outputs)
    exact = reference.matmul(np.asarray(x), plain).reshape(5, *outputs_of(shape, inputs))
    limit = TOLERANCE["float32"].max_abs if summed is None else 2**-7 * np.abs(exact).max()
    np.testing.assert_allclose(program(x, matrix), exact, rtol=0, atol=limit)
