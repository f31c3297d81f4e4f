"""round_rows in Mosaic GPU: interpreted against the reference, and compiled for H100s, one kernel a call."""

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxserve.aot.target import Target
from jaxserve.executor.compile_cache import nothing_kept
from jaxserve.models.mlp import ACTIVATIONS
from pallas_kernels.parity.rounding import ROUND_CASES, check_round
from pallas_kernels.registry import Target as KernelTarget
from pallas_kernels.round_rows import Gate, Norm, mosaic_gpu_support, round_gated, round_normed, round_rows
from pallas_kernels.round_rows.problem import RoundProblem
from sharding import make_mesh

from .needs import MOSAIC, PLUGIN

pytestmark = MOSAIC
NORM, BFLOAT16 = Norm(1e-5, 0.0), jnp.dtype("bfloat16")


@pytest.mark.parametrize("case", [case for case in ROUND_CASES if case.tiny], ids=lambda case: case.name)
def test_case(capfd, case):
    result = check_round(case, "bfloat16", "mosaic_gpu_interpreted")
    assert result.verdict == "pass", result
    assert "RACE DETECTED" not in capfd.readouterr().out


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gates_are_those_of_xla(activation):
    rng = np.random.default_rng(0)
    sums = jnp.asarray(100 * rng.standard_normal((3, 2, 512)), BFLOAT16)
    gate = Gate(*(jnp.asarray(rng.uniform(0.01, 0.1, shape), jnp.float32) for shape in ((3,), (2, 512))))
    gated = partial(round_gated, sums, gate, activation=ACTIVATIONS[activation], dtype=BFLOAT16)
    got, want = (gated(implementation=name) for name in ("mosaic_gpu_interpreted", "xla"))
    np.testing.assert_allclose(got.steps, want.steps, rtol=2.0**-7)
    assert np.mean(np.asarray(got.values, np.float32)[:3] != np.asarray(want.values, np.float32)) < 0.02


@pytest.mark.parametrize(
    ("width", "dtype", "reason"),
    [
        (256, "bfloat16", None),
        (16384, "bfloat16", None),
        (8192, "float32", "rows must be bfloat16, not float32"),
        (2880, "bfloat16", "a row must have a multiple of 256 numbers, at most 16384, not 2880"),
        (16640, "bfloat16", "a row must have a multiple of 256 numbers, at most 16384, not 16640"),
    ],
)
def test_limits(width, dtype, reason):
    assert mosaic_gpu_support.supports(RoundProblem(width, jnp.dtype(dtype))) == reason


@PLUGIN
@pytest.mark.parametrize(
    ("width", "gated", "rows", "gpus"),
    [(8192, 3584, 64, 8), (4096, 14336, 3, 1), pytest.param(16384, 6656, 16, 8, marks=pytest.mark.extended)],
)
def test_compiles_for_an_h100(capfd, monkeypatch, width, gated, rows, gpus):
    """Each call is one kernel on what a device has, and none spills; rows of products are a multiple of 16."""
    monkeypatch.setenv("MOSAIC_GPU_DUMP_PTXAS", "1")
    mesh = make_mesh(gpus, Target.parse(f"h100:{gpus}").devices())
    target = KernelTarget.of(mesh.devices.flat[0])

    def array(shape, dtype="bfloat16", *axes):
        spec = PartitionSpec(*(axis and tuple(mesh.axis_names) for axis in axes))
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=NamedSharding(mesh, spec))

    def rounded(stream, added, scale, attended, sums, gate):
        total, first = round_normed(stream, added, scale, norm=NORM, target=target)
        _, again = round_normed(total, None, scale, norm=NORM, target=target)
        heads = round_rows(attended, target=target)
        hidden = round_gated(sums, gate, activation=ACTIVATIONS["silu"], dtype=BFLOAT16, target=target)
        return first, again, heads, hidden

    arguments = (
        *(array((rows, width)) for _ in range(2)),
        array((width,)),
        array((rows, gpus, 1024), "bfloat16", None, True),
        array((rows, gpus, 2 * gated), "bfloat16", None, True),
        Gate(array((rows,), "float32"), array((gpus, 2 * gated), "float32", True)),
    )
    with nothing_kept():
        text = jax.jit(rounded).lower(*arguments).compile().as_text()
    assert text is not None
    assert len(re.findall(r'custom_call_target="mosaic_gpu', text)) == 4
    assert not re.findall(r"= \S+ (?:copy|copy-start|fusion|slice|concatenate|all-\S+)\(", text)
    assert f"f8e4m3fn[{-(-rows // 16) * 16},1,{gated}]" in text
    printed = capfd.readouterr()
    spilled = re.findall(r"(\d+) bytes spill stores", printed.out + printed.err)
    assert spilled
    assert set(spilled) == {"0"}
