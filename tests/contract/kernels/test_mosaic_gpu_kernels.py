"""The Mosaic GPU implementation against the shared suite's reference, interpreted: values, on machines without a GPU.

Interpreting takes seconds a call, so the batches are the suite's in small. What the interpreter cannot see (registers, shared
memory, layouts) is compiled for an H100 in test_mosaic_gpu_compiled.py.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest

from pallas_kernels.ragged_paged_attention import mosaic_gpu_support

from .attention_suite import SINKS, AttentionSuite
from .batches import Heads, make_batch

pytestmark = pytest.mark.skipif(
    jax.__version_info__ < mosaic_gpu_support.OLDEST_JAX, reason="Mosaic GPU kernels need jax 0.11.2, hence Python 3.12"
)

# A decode within a page, a chunk behind a prefix, a row without queries, a decode and a chunk over the edge of a block of keys.
MIXED = ((1, 17), (5, 21), (0, 0), (1, 70), (3, 65))
DECODES = ((1, 1), (0, 0), (1, 64), (1, 130))
HEADS = Heads(4, 2, 64)


class Interpreted(AttentionSuite):
    """The suite's way to run and to compare, without its tests."""

    __test__ = False
    implementation = "mosaic_gpu_interpreted"


def check(rows, *, dtype="float16", heads=HEADS, tokens=None, page_size=16, magnitude=1.0, **options):
    batch = make_batch(rows, dtype=dtype, heads=heads, tokens=tokens, page_size=page_size, magnitude=magnitude)
    Interpreted().check(batch, **options)


@pytest.mark.parametrize("rows", [MIXED, DECODES], ids=["mixed", "decodes"])
def test_bfloat16(rows):
    check(rows, dtype="bfloat16", page_size=32)


@pytest.mark.parametrize("page_size", [8, 64])
def test_page_size(page_size):
    check(MIXED, page_size=page_size)


@pytest.mark.parametrize(("query", "kv"), [(7, 1), (16, 1), (2, 2)])
def test_heads(query, kv):
    check(MIXED, heads=Heads(query, kv, 32), page_size=32)


@pytest.mark.parametrize("dim", [80, 96, 256])
def test_head_dim(dim):
    check(((1, 17), (3, 65)), heads=Heads(2, 1, dim), page_size=32)


def test_window():
    check(((1, 17), (1, 200), (4, 150)), window=70, page_size=32)


def test_window_of_one():
    check(((1, 65), (3, 66)), window=1, page_size=32)


def test_sinks():
    check(MIXED, sinks=SINKS, page_size=32)


def test_everything_at_once():
    check(MIXED, dtype="bfloat16", window=9, soft_cap=3.0, sinks=SINKS, scale=0.3)


def test_a_long_row_in_parts():
    # Two parts of a decode, and more blocks of keys than there are slots; the short row leaves its second part empty.
    check(((1, 1000), (1, 20)), tokens=2, heads=Heads(1, 1, 64), page_size=64)


def test_a_long_chunk():
    # More queries than an item, more blocks of keys than there are slots.
    check(((70, 390),), heads=Heads(2, 1, 64), page_size=64)


def test_huge_scores():
    batch = make_batch(MIXED, dtype="float16", magnitude=300.0, page_size=32)
    assert np.isfinite(Interpreted().attend(batch)).all()


def test_nothing_to_do():
    batch = make_batch([(0, 0), (0, 0)], tokens=8, dtype="bfloat16")
    assert (Interpreted().attend(batch) == 0).all()


def test_as_many_tokens_as_rows():
    # Chunks that the decode kernel computes, a token at a time.
    batch = make_batch([(3, 20), (0, 0), (2, 2), (0, 0), (1, 30)], tokens=6, padded_rows=6, dtype="float16", page_size=32)
    Interpreted().check(batch)
