"""Where the Triton kernel is picked; the kernel itself needs jax-triton, which needs a GPU to run."""

from dataclasses import replace

import jax.numpy as jnp
import pytest

from pallas_kernels.parity.features import ATTENTION
from pallas_kernels.ragged_paged_attention import triton_support
from pallas_kernels.registry import Target


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (Target("gpu", (8, 0)), None),
        (Target("gpu", (8, 9)), None),
        (Target("gpu", (9, 0)), "it needs a GPU of compute capability 8.x, not gpu of compute capability 9.0"),
        (Target("gpu"), "it needs a GPU of compute capability 8.x, not gpu"),
        (Target("cpu"), "it needs a GPU of compute capability 8.x, not cpu"),
    ],
)
def test_where_it_runs(monkeypatch, target, reason):
    monkeypatch.setattr(triton_support, "find_spec", lambda name: object())
    assert triton_support.runs_on(target) == reason


def test_without_jax_triton(monkeypatch):
    monkeypatch.setattr(triton_support, "find_spec", lambda name: None)
    assert triton_support.runs_on(Target("gpu", (8, 0))) == "jax-triton is not installed"


@pytest.mark.parametrize(
    ("changes", "supported", "suited"),
    [
        ({}, None, None),
        ({"tokens": 65}, None, "it computes prompts a token at a time"),
        ({"head_dim": 257}, "the head dim can be 256 at most, not 257", None),
        ({"heads": 520}, "a KV head can have 64 query heads at most, not 65", None),
        ({"dtype": jnp.dtype("float32")}, "queries must be bfloat16 or float16, not float32", None),
        ({"value_dim": 64}, "it reads values, and this cache has none beside its keys", None),
        ({"kv_dtype": jnp.dtype("float16")}, "the cache must have the queries' bfloat16, not float16", None),
    ],
)
def test_what_it_computes(changes, supported, suited):
    problem = replace(ATTENTION, **changes)
    assert (triton_support.supports(problem), triton_support.suits(problem)) == (supported, suited)
