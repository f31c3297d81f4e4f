"""Where the Triton kernel is picked; tests/contract/kernels/test_triton.py has the kernel itself."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.hopper import OLDEST_JAX
from pallas_kernels.parity.batches import FLOAT8, INT8
from pallas_kernels.parity.features import ATTENTION
from pallas_kernels.ragged_paged_attention import AttentionOptions, triton_support
from pallas_kernels.ragged_paged_attention.implementations import IMPLEMENTATIONS
from pallas_kernels.registry import Target, pick


def install(monkeypatch, triton="3.7.0"):
    monkeypatch.setattr(triton_support, "find_spec", lambda name: object())
    monkeypatch.setattr(triton_support, "version", {"triton": triton}.__getitem__)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (Target("gpu", (8, 0)), None),
        (Target("gpu", (12, 0)), None),
        (Target("gpu", (7, 5)), "it needs a GPU of compute capability 8.0 or later, not gpu of compute capability 7.5"),
        (Target("gpu"), "it needs a GPU of compute capability 8.0 or later, not gpu"),
        (Target("cpu"), "it needs a GPU of compute capability 8.0 or later, not cpu"),
    ],
)
def test_where_it_runs(monkeypatch, target, reason):
    install(monkeypatch)
    assert triton_support.runs_on(target) == reason


@pytest.mark.parametrize(
    ("installed", "reason"), [("3.6.0", "jax-triton needs Triton 3.7 or newer, not 3.6.0"), ("3.10.1", None)]
)
def test_with_an_old_triton(monkeypatch, installed, reason):
    install(monkeypatch, installed)
    assert triton_support.runs_on(Target("gpu", (8, 0))) == reason


def test_without_jax_triton(monkeypatch):
    monkeypatch.setattr(triton_support, "find_spec", lambda name: None)
    assert triton_support.runs_on(Target("gpu", (8, 0))) == "jax-triton is not installed"


@pytest.mark.parametrize(
    ("changes", "supported"),
    [
        ({}, None),
        ({"tokens": 65}, None),
        ({"kv_dtype": FLOAT8, "scales_dtype": jnp.dtype("float32")}, None),
        ({"kv_dtype": INT8, "scales_dtype": jnp.dtype("float32")}, None),
        ({"head_dim": 257}, "the head dim can be 256 at most, not 257"),
        ({"heads": 520}, "a KV head can have 64 query heads at most, not 65"),
        ({"dtype": jnp.dtype("float32")}, "queries must be bfloat16 or float16, not float32"),
        ({"options": AttentionOptions(0.1, value_dim=64)}, "it reads values, and this cache has none beside its keys"),
        ({"kv_dtype": jnp.dtype("float16")}, "the cache must have the queries' bfloat16, or be quantized, not float16"),
    ],
)
def test_what_it_computes(changes, supported):
    assert triton_support.supports(replace(ATTENTION, **changes)) == supported


def test_hopper_has_a_better_one(monkeypatch):
    install(monkeypatch)
    names = [pick("attention", IMPLEMENTATIONS, Target("gpu", each), ATTENTION)[0].name for each in ((8, 0), (9, 0), (10, 0))]
    assert names == ["triton", "triton" if jax.__version_info__ < OLDEST_JAX else "mosaic_gpu", "triton"]
