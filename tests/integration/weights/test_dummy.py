from functools import cache

import jax
import numpy as np
import pytest

from jaxserve.models.binding import abstract_params
from jaxserve.models.registry import decoder_config
from jaxserve.weights.load import load_params
from sharding import make_mesh

HF = {"architectures": ["Qwen3ForCausalLM"], "vocab_size": 301, "hidden_size": 64, "intermediate_size": 96}
HF |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "attention_bias": True}
CONFIG = decoder_config(HF)


@cache
def dummy(seed=0, tensor=1, dtype="float32", config=CONFIG):
    return load_params("nowhere", config, make_mesh(tensor), dtype, load_format="dummy", seed=seed)


def test_the_whole_tree_is_made_in_the_wanted_dtype():
    params = dummy(dtype="bfloat16")
    expected = abstract_params(CONFIG, "bfloat16")
    assert jax.tree.map(lambda a: (a.shape, a.dtype), params) == jax.tree.map(lambda a: (a.shape, a.dtype), expected)


def test_a_seed_gives_one_model():
    first, again, other = dummy(), dummy.__wrapped__(), dummy(seed=1)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, first, again)))
    assert not np.array_equal(first["layers"]["0"]["mlp"]["down"], other["layers"]["0"]["mlp"]["down"])


def test_layers_and_parts_differ():
    layers = dummy()["layers"]
    assert not np.array_equal(layers["0"]["attention"]["qkv"], layers["1"]["attention"]["qkv"])
    gate, up = np.split(np.asarray(layers["0"]["mlp"]["gate_up"]), 2, axis=-1)
    assert abs(np.corrcoef(gate.ravel(), up.ravel())[0, 1]) < 0.05


def test_the_model_does_not_depend_on_the_mesh():
    one, two = dummy(), dummy(tensor=2)
    width = CONFIG.head_dim
    q, k, v = np.split(np.asarray(one["layers"]["0"]["attention"]["qkv"])[:, 0], (4 * width, 6 * width), axis=-1)
    for j in range(2):
        halves = [np.split(part, 2, axis=-1)[j] for part in (q, k, v)]
        np.testing.assert_array_equal(two["layers"]["0"]["attention"]["qkv"][:, j], np.concatenate(halves, axis=-1))
    out = np.asarray(one["layers"]["0"]["attention"]["out"]).reshape(2, -1, 64)
    np.testing.assert_array_equal(two["layers"]["0"]["attention"]["out"], out)
    np.testing.assert_array_equal(two["embedding"]["table"][:301], one["embedding"]["table"])
    np.testing.assert_array_equal(two["head"]["kernel"][:, :301], one["head"]["kernel"])
    assert not np.any(two["head"]["kernel"][:, 301:])


def test_devices_that_share_a_kv_head_hold_the_same_one():
    one, four = dummy(), dummy(tensor=4)
    width = CONFIG.head_dim
    for name in ("qkv", "qkv_bias"):
        whole, packed = (np.asarray(params["layers"]["1"]["attention"][name]) for params in (one, four))
        q, k, v = np.split(whole[..., 0, :], (4 * width, 6 * width), axis=-1)
        for j in range(4):
            heads = [q[..., j * width : (j + 1) * width], *(part[..., j // 2 * width : (j // 2 + 1) * width] for part in (k, v))]
            np.testing.assert_array_equal(packed[..., j, :], np.concatenate(heads, axis=-1))


def test_numbers_are_uniform_with_the_variance_of_a_good_start():
    params = dummy()
    head = np.asarray(params["head"]["kernel"])
    assert head.std() == pytest.approx(64**-0.5, rel=0.02)
    assert abs(head.mean()) < 0.002
    assert np.abs(head).max() <= 3**0.5 * 64**-0.5
    counts, _ = np.histogram(head, bins=16)
    assert counts.min() > 0.9 * counts.mean()
    neighbours = np.corrcoef(head[:, :-1].ravel(), head[:, 1:].ravel())[0, 1]
    assert abs(neighbours) < 0.03
    assert (np.asarray(params["norms"]["scale"]) == 1).all()
