"""Errors name the argument, and values are checked on concrete arrays."""

from __future__ import annotations

import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import grouped_matmul as grouped
from pallas_kernels import kv_write as write
from pallas_kernels import ragged_paged_attention as attention
from pallas_kernels.add_lora import add_lora
from pallas_kernels.matmul import Panels, pack
from pallas_kernels.quantization import SCHEMES
from pallas_kernels.rotate_and_write import Rotation, rotate_and_write
from pallas_kernels.rotate_write_attend import rotate_write_attend

TURNS = jnp.zeros((3, 8))
FLOAT8_PAGES = jnp.zeros((2, 6, 2, 2, 8, 16), jnp.float8_e4m3fn)
LATENTS = jnp.zeros((2, 6, 1, 2, 8, 16))
OF_LATENTS = attention.AttentionOptions(1.0, value_dim=17)


def attention_arguments(**changes):
    arguments = {
        "q": jnp.zeros((5, 4, 16)),
        "kv_pages": jnp.zeros((2, 6, 2, 2, 8, 16)),
        "page_table": jnp.zeros((3, 4), jnp.int32),
        "query_start": jnp.zeros(4, jnp.int32),
        "kv_length": jnp.zeros(3, jnp.int32),
        "layer": 0,
        "options": attention.AttentionOptions(1.0),
    }
    return arguments | changes


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"q": jnp.zeros((5, 4, 8))}, ValueError, "q must be [T, H, D] = [any, any, 16], got [5, 4, 8]"),
        ({"q": jnp.zeros((5, 3, 16))}, ValueError, "q must have a multiple of the cache's 2 KV heads, got 3 heads"),
        ({"q": jnp.zeros((0, 4, 16))}, ValueError, "q must have at least one token"),
        ({"q": jnp.zeros((5, 4, 16), jnp.int32)}, TypeError, "q must be bfloat16 or float16 or float32, got int32"),
        ({"kv_pages": jnp.zeros((2, 6, 2, 8, 16))}, ValueError, "kv_pages must be [L, P, 2, K, S, D]"),
        ({"page_table": jnp.zeros((3, 0), jnp.int32)}, ValueError, "page_table must not be empty, got [3, 0]"),
        ({"query_start": jnp.zeros(3, jnp.int32)}, ValueError, "query_start must be [R + 1] = [4], got [3]"),
        ({"kv_length": jnp.zeros(4, jnp.int32)}, ValueError, "kv_length must be [R] = [3], got [4]"),
        ({"kv_length": jnp.zeros(3, jnp.float32)}, TypeError, "kv_length must be int32, got float32"),
        ({"sinks": jnp.zeros(3)}, ValueError, "sinks must be [H] = [4], got [3]"),
        ({"kv_scales": jnp.zeros((2, 6, 2, 2, 8))}, TypeError, "a cache of float32 must have no kv_scales"),
        ({"kv_pages": FLOAT8_PAGES}, TypeError, "a cache of float8_e4m3fn needs kv_scales"),
        (
            {"kv_pages": FLOAT8_PAGES, "kv_scales": jnp.zeros((2, 6, 2, 2, 4))},
            ValueError,
            "kv_scales must be [L, P, 2, K, S] = [2, 6, 2, 2, 8], got [2, 6, 2, 2, 4]",
        ),
        (
            {"kv_pages": FLOAT8_PAGES, "kv_scales": jnp.zeros((2, 6, 2, 2, 8), jnp.float16)},
            TypeError,
            "kv_scales must be bfloat16 or float32, got float16",
        ),
        ({"layer": 2}, ValueError, "layer must be between 0 and 1, got 2"),
        (
            {"options": OF_LATENTS},
            ValueError,
            "value_dim goes with a cache that has no values: it is 17, the cache [2, 6, 2, 2, 8, 16]",
        ),
        ({"kv_pages": LATENTS}, ValueError, "value_dim goes with a cache that has no values: it is None"),
        ({"kv_pages": LATENTS, "options": OF_LATENTS}, ValueError, "value_dim must be between 1 and 16, got 17"),
        (
            {"implementation": "abacus"},
            ValueError,
            "ragged_paged_attention has no implementation 'abacus'; it has: ",
        ),
    ],
)
def test_attention_arguments(changes, error, message):
    with pytest.raises(error, match=re.escape(message)):
        attention.ragged_paged_attention(**attention_arguments(**changes))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"k": jnp.zeros((3, 2, 8))}, ValueError, "k must be [T, K, D] = [3, 2, 16], got [3, 2, 8]"),
        ({"v": jnp.zeros((3, 2, 16), jnp.bfloat16)}, TypeError, "v must be float32 like k, got bfloat16"),
        ({"v": jnp.zeros((4, 2, 16))}, ValueError, "v must be [T, K, D] = [3, 2, 16], got [4, 2, 16]"),
        ({"v": None}, ValueError, "v must be None for a cache of keys alone and for no other, the cache is [2, 6, 2, 2, 8, 16]"),
        ({"kv_pages": LATENTS}, ValueError, "v must be None for a cache of keys alone"),
        ({"slots": jnp.zeros((3, 1), jnp.int32)}, ValueError, "slots must be [T]"),
        ({"slots": jnp.zeros(3, jnp.uint32)}, TypeError, "slots must be int32, got uint32"),
        ({"layer": -1}, ValueError, "layer must be between 0 and 1, got -1"),
        ({"implementation": "abacus"}, ValueError, "kv_write has no implementation 'abacus'; it has: "),
    ],
)
def test_write_arguments(changes, error, message):
    arguments = {
        "kv_pages": jnp.zeros((2, 6, 2, 2, 8, 16)),
        "k": jnp.zeros((3, 2, 16)),
        "v": jnp.zeros((3, 2, 16)),
        "slots": jnp.zeros(3, jnp.int32),
        "layer": 0,
    }
    with pytest.raises(error, match=re.escape(message)):
        write.kv_write(**arguments | changes)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"q": jnp.zeros((4, 4, 16))}, ValueError, "q must be [T, H, D] = [3, any, 16], got [4, 4, 16]"),
        ({"k": jnp.zeros((3, 3, 16))}, ValueError, "k must be [T, K, D] = [3, 2, 16], got [3, 3, 16]"),
        ({"k": jnp.zeros((3, 2, 16), jnp.bfloat16)}, TypeError, "k must be float32 like q, got bfloat16"),
        ({"v": None}, ValueError, "v must be None for a cache of keys alone and for no other, the cache is [2, 6, 2, 2, 8, 16]"),
        ({"rotation": Rotation(TURNS, TURNS[:2])}, ValueError, "rotation.sin must be [T, half] = [3, 8], got [2, 8]"),
        ({"rotation": Rotation(TURNS.astype("bfloat16"), TURNS)}, TypeError, "rotation.cos must be float32, got bfloat16"),
        ({"rotation": Rotation(jnp.zeros((3, 9)), jnp.zeros((3, 9)))}, ValueError, "rotation has 18 dimensions, a head has 16"),
        ({"slots": jnp.zeros(3, jnp.uint32)}, TypeError, "slots must be int32, got uint32"),
        ({"layer": 2}, ValueError, "layer must be between 0 and 1, got 2"),
        ({"implementation": "abacus"}, ValueError, "rotate_and_write has no implementation 'abacus'; it has: "),
    ],
)
def test_rotate_arguments(changes, error, message):
    arguments = {
        "kv_pages": jnp.zeros((2, 6, 2, 2, 8, 16)),
        "q": jnp.zeros((3, 4, 16)),
        "k": jnp.zeros((3, 2, 16)),
        "v": jnp.zeros((3, 2, 16)),
        "rotation": Rotation(TURNS, TURNS),
        "slots": jnp.zeros(3, jnp.int32),
        "layer": 0,
    }
    with pytest.raises(error, match=re.escape(message)):
        rotate_and_write(**arguments | changes)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"k": jnp.zeros((5, 3, 16))}, ValueError, "k must be [T, K, D] = [5, 2, 16], got [5, 3, 16]"),
        ({"slots": jnp.zeros(5, jnp.uint32)}, TypeError, "slots must be int32, got uint32"),
        ({"query_start": jnp.zeros(3, jnp.int32)}, ValueError, "query_start must be [R + 1] = [4], got [3]"),
        ({"options": OF_LATENTS}, ValueError, "value_dim goes with a cache that has no values"),
        ({"implementation": "abacus"}, ValueError, "rotate_write_attend has no implementation 'abacus'; it has: "),
    ],
)
def test_rotate_and_attend_arguments(changes, error, message):
    heads, turns = jnp.zeros((5, 2, 16)), jnp.zeros((5, 8))
    arguments = attention_arguments(k=heads, v=heads, rotation=Rotation(turns, turns), slots=jnp.zeros(5, jnp.int32))
    with pytest.raises(error, match=re.escape(message)):
        rotate_write_attend(**arguments | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_start": [0, 2, 1, 3]}, "query_start must ascend"),
        ({"query_start": [0, 2, 3, 6]}, "query_start must ascend from 0 to at most 5"),
        ({"page_table": np.full((3, 4), 6)}, "page_table entries must be between 0 and 5"),
        ({"kv_length": [1, 1, 1]}, "row 0 has 2 queries but only 1 keys"),
        ({"kv_length": [2, 33, 1]}, "row 1 has 33 keys, more than 4 pages of 8 hold"),
        ({"page_table": np.zeros((3, 4), int)}, "row 0 uses the null page"),
    ],
)
def test_attention_values(changes, message):
    values = {"page_table": np.ones((3, 4), int), "query_start": [0, 2, 3, 4], "kv_length": [2, 9, 1]}
    cache = jnp.zeros((2, 6, 2, 2, 8, 16))
    arrays: dict[str, Any] = {name: np.asarray(x) for name, x in values.items()}
    attention.check_inputs(5, cache, **arrays)
    with pytest.raises(ValueError, match=re.escape(message)):
        attention.check_inputs(5, cache, **arrays | {name: np.asarray(x) for name, x in changes.items()})


@pytest.mark.parametrize(
    ("slots", "message"), [([8, -1], "got -1"), ([48], "between 0 and 47"), ([9, 0, 9], "slot 9 is written twice")]
)
def test_write_values(slots, message):
    cache = jnp.zeros((2, 6, 2, 2, 8, 16))
    write.check_inputs(cache, np.asarray([0, 0, 8, 47]))
    with pytest.raises(ValueError, match=message):
        write.check_inputs(cache, np.asarray(slots))


def grouped_arguments(**changes):
    arguments = {"x": jnp.zeros((5, 8)), "weights": jnp.zeros((3, 8, 4)), "group_sizes": jnp.zeros(3, jnp.int32)}
    return arguments | changes


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"x": jnp.zeros((5, 8, 1))}, ValueError, "x must be [N, I] = [any, any], got [5, 8, 1]"),
        ({"x": jnp.zeros((5, 7))}, ValueError, "weights must be [X, I, O] = [any, 7, any], got [3, 8, 4]"),
        ({"group_sizes": jnp.zeros(4, jnp.int32)}, ValueError, "group_sizes must be [X] = [3], got [4]"),
        ({"x": jnp.zeros((0, 8))}, ValueError, "no axis may be empty, got x [0, 8] and weights [3, 8, 4]"),
        ({"x": jnp.zeros((5, 8), jnp.int32)}, TypeError, "x must be bfloat16 or float16 or float32, got int32"),
        ({"weights": jnp.zeros((3, 8, 4), jnp.bfloat16)}, TypeError, "weights must be float32 like x, got bfloat16"),
        (
            {"weights": pack(jnp.zeros((8, 4)), Panels((0,), (8, 4)), SCHEMES["int8"])},
            ValueError,
            "weights are one matrix, not a stack of them",
        ),
        (
            {"weights": pack(jnp.zeros((3, 7, 4)), Panels((0,), (7, 4)), SCHEMES["int8"], stacked=True)},
            ValueError,
            "the weights have 7 inputs, and x [5, 8] has 8",
        ),
        ({"group_sizes": jnp.zeros(3)}, TypeError, "group_sizes must be int32, got float32"),
        ({"expected_rows": 6}, ValueError, "expected_rows must be between 0 and 5, got 6"),
        ({"expected_rows": -1}, ValueError, "expected_rows must be between 0 and 5, got -1"),
        ({"dtype": jnp.int32}, TypeError, "dtype must be bfloat16 or float16 or float32, got int32"),
        (
            {"implementation": "abacus"},
            ValueError,
            "grouped_matmul has no implementation 'abacus'; it has: mosaic_gpu, cpu_native, xla",
        ),
    ],
)
def test_grouped_matmul_arguments(changes, error, message):
    with pytest.raises(error, match=re.escape(message)):
        grouped.grouped_matmul(**grouped_arguments(**changes))


def lora_arguments(**changes):
    matrices = {"a": jnp.zeros((3, 8, 6)), "b": (jnp.zeros((3, 4, 5)), jnp.zeros((3, 4, 2)))}
    return {"y": jnp.zeros((5, 7)), "x": jnp.zeros((5, 6)), **matrices, "tokens": jnp.zeros(3, jnp.int32)} | changes


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"x": jnp.zeros((5, 7))}, ValueError, "a must be [S, P*R, I] = [any, any, 7], got [3, 8, 6]"),
        ({"b": ()}, ValueError, "b must be as many matrices as a is of, got 0 and a [3, 8, 6]"),
        ({"b": (jnp.zeros((3, 3, 7)),)}, ValueError, "b[0] must be [S, R, O_p] = [3, 8, any], got [3, 3, 7]"),
        ({"y": jnp.zeros((5, 8))}, ValueError, "y must be [N, O] = [5, 7], got [5, 8]"),
        ({"tokens": jnp.zeros(2, jnp.int32)}, ValueError, "tokens must be [S] = [3], got [2]"),
        ({"y": jnp.zeros((0, 7)), "x": jnp.zeros((0, 6))}, ValueError, "no axis may be empty"),
        ({"x": jnp.zeros((5, 6), jnp.int32)}, TypeError, "x must be bfloat16 or float16 or float32, got int32"),
        ({"y": jnp.zeros((5, 7), jnp.bfloat16)}, TypeError, "y must be float32, got bfloat16"),
        ({"tokens": jnp.zeros(3)}, TypeError, "tokens must be int32, got float32"),
        ({"a": jnp.zeros((3, 8, 6), jnp.bfloat16)}, TypeError, "a must be float32, got bfloat16"),
        ({"implementation": "abacus"}, ValueError, "add_lora has no implementation 'abacus'; it has: cpu_native, xla"),
    ],
)
def test_add_lora_arguments(changes, error, message):
    with pytest.raises(error, match=re.escape(message)):
        add_lora(**lora_arguments(**changes))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [([2, -1, 0], "group_sizes must not be negative, got -1"), ([2, 1, 3], "group_sizes must be 5 in sum at most, got 6")],
)
def test_group_sizes(sizes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        grouped.check_inputs(5, np.asarray(sizes))
    grouped.check_inputs(5, np.asarray([2, 0, 3]))


def test_pages_before_every_window_may_be_given_back():
    cache = jnp.zeros((2, 6, 2, 2, 8, 16))
    batch = {"page_table": np.array([[0, 0, 3, 4]]), "query_start": np.array([0, 2]), "kv_length": np.array([32])}
    attention.check_inputs(2, cache, **batch, window=15)  # the first query is at position 30 and sees 16 to 30
    with pytest.raises(ValueError, match="row 0 uses the null page"):
        attention.check_inputs(2, cache, **batch, window=16)
