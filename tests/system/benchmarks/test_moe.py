"""What the mixture-of-experts benchmark compares has the same active FLOPs, and what it counts is what it says."""

from __future__ import annotations

from importlib.util import find_spec

import jax
import jax.numpy as jnp
import pytest

from benchmarks import moe, moe_flops
from pallas_kernels.hopper import OLDEST_JAX

COMPILED = pytest.mark.skipif(
    jax.__version_info__ < OLDEST_JAX or find_spec("jax_cuda13_plugin") is None,
    reason="NOT CHECKED: compiling for an H100 needs jax 0.11.2 and jax-cuda13-plugin",
)
TINY = moe.Shape("tiny", experts=8, active=2, embed=32, ffn=24)


def size(parameters):
    return sum(leaf.size for leaf in jax.tree.leaves(parameters))


def test_layers_have_the_same_active_weights():
    config = TINY.config()
    (_, sparse), (_, dense) = moe.sparse_layer(config, "float32"), moe.dense_layer(config, "float32")
    router = TINY.embed * TINY.experts
    assert (size(sparse) - router) * TINY.active == size(dense) * TINY.experts


def test_cases(monkeypatch, capsys):
    monkeypatch.setattr(moe, "CALLS", 2)
    one, several = moe.compare(TINY, "bfloat16", (1, 30))
    assert capsys.readouterr().out.count("tiny") == 2
    assert (one["tokens"], one["experts_visited"], one["weights_over_dense"]) == (1, 2, 1.0)
    assert (several["experts_visited"], several["weights_over_dense"]) == (8, 4.0)
    assert several["ms"] > 0 < several["time_over_dense"]


def test_padding_visits_no_expert():
    call, parameters = moe.sparse_layer(TINY.config(), "float32")
    out = call(parameters, jnp.ones((4, TINY.embed)), jnp.int32(3))
    assert (out[:3] != 0).any(axis=1).all()
    assert (out[3] == 0).all()


def test_flops_by_hand():
    # One expert has all 100 rows: two tiles of 64.
    counted = moe_flops.computed(moe_flops.Model("one", 1, 1, 64, 128), 100)
    assert counted == {
        "experts_visited": 1,
        "rows_an_expert": 100.0,
        "row_tile": 64,
        "active_gflops": round(2 * 100 * (64 * 256 + 128 * 64) / 1e9, 3),
        "flops_over_active": 1.28,
    }


def test_prompts_compute_little_that_is_not_theirs():
    assert {model.name: moe_flops.computed(model, 8192)["flops_over_active"] < 1.15 for model in moe_flops.MODELS} == {
        model.name: True for model in moe_flops.MODELS
    }


@COMPILED
def test_a_compiled_layer_multiplies_in_its_kernels_alone(capsys, monkeypatch):
    small = moe_flops.Model("small", 4, 2, 128, 64)
    (case,) = moe_flops.count(small, (8,))
    assert (case["model"], case["tokens"], case["rows_an_expert"]) == ("small", 8, 4.0)
    for text in ("", 'custom_call_target="mosaic_gpu_v2" ' * 2 + " dot(", 'custom_call_target="mosaic_gpu_v2"' * 3):
        monkeypatch.setattr(moe_flops, "compiled", lambda *of, text=text: text)
        with pytest.raises(RuntimeError, match=r"small at 8 tokens has [023] kernels, or products"):
            moe_flops.count(small, (8,))
