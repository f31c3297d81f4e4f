"""The Mosaic GPU implementation through the parity gate, interpreted: values and races, on machines without a GPU.

Interpreting takes seconds a call, so these are the list's tiny cases and small ones of what its large ones are about. What the
interpreter cannot see (registers, shared memory, layouts) is compiled for an H100 in test_mosaic_gpu_compiled.py.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from pallas_kernels.parity.cases import ATTENTION_CASES, EVERYTHING, LATENTS, PLAIN, SHORT_LATENTS, SINKS, AttentionCase
from pallas_kernels.parity.gate import TOLERANCE, check_attention
from pallas_kernels.ragged_paged_attention import ragged_paged_attention, reference
from tests.support.tiers import tiered

from .batches import Heads, make_batch
from .needs import MOSAIC

pytestmark = MOSAIC

SEVERAL = [case for case in ATTENTION_CASES if case.name.startswith("several queries")]
TINY = [case for case in ATTENTION_CASES if case.tiny]
# A decode within a page, a chunk behind a prefix, a row without queries, a decode and a chunk over the edge of a block of keys.
MIXED = ((1, 17), (5, 21), (0, 0), (1, 70), (3, 65))
ONE = Heads(4, 1, 32)
CASES = (
    AttentionCase("pages of 8", ((1, 17), (3, 21)), heads=ONE, page_size=8),
    AttentionCase("mixed", MIXED, heads=ONE),
    AttentionCase("pages of 64", MIXED, heads=ONE, page_size=64),
    AttentionCase("odd group", ((1, 17), (10, 21)), heads=Heads(7, 1, 32), page_size=32),
    AttentionCase("odd group, pages of 8", ((1, 17), (10, 21)), heads=Heads(7, 1, 32), page_size=8),
    AttentionCase("groups of 16", ((1, 17), (10, 21)), heads=Heads(16, 1, 16), page_size=32),
    AttentionCase("head dim 256", ((1, 17), (3, 65)), heads=Heads(2, 1, 256), page_size=32),
    AttentionCase(
        "window over blocks", ((1, 17), (1, 200), (4, 150)), heads=ONE, options=replace(PLAIN, window=70), page_size=64
    ),
    AttentionCase("sinks", MIXED, heads=Heads(4, 2, 32), sinks=SINKS, page_size=64),
    AttentionCase("everything", MIXED, heads=ONE, options=EVERYTHING, sinks=SINKS, page_size=32),
    AttentionCase("huge scores", ((1, 17), (5, 21)), heads=Heads(2, 1, 80), magnitude=1e4, key_magnitude=1e3, page_size=32),
    AttentionCase(
        "huge scores, decodes",
        ((1, 17), (1, 70)),
        tokens=2,
        heads=Heads(2, 1, 80),
        magnitude=1e4,
        key_magnitude=1e3,
        page_size=32,
    ),
    # More workers than rows.
    AttentionCase("a row in parts", ((1, 600), (1, 20)), tokens=2, heads=Heads(1, 1, 32), page_size=64),
    # More blocks of keys than there are slots of keys and of values, which differ in number.
    AttentionCase("a long row", ((1, 400),), tokens=1, heads=Heads(1, 1, 256), page_size=64),
    # More queries than a block of the prefill kernel has, more blocks of keys than there are slots.
    AttentionCase("a long chunk", ((40, 390),), heads=Heads(8, 1, 64), page_size=64),
    AttentionCase(
        "chunks, everything", ((1, 70), (20, 150), (2, 33)), heads=Heads(16, 1, 16), options=EVERYTHING, sinks=SINKS * 4
    ),
    # Few queries, but more than a tile has: the decode kernel shares their keys.
    AttentionCase("a short chunk", ((1, 70), (20, 390), (2, 33)), heads=Heads(8, 1, 32), page_size=64),
    AttentionCase("windows of a short chunk", ((20, 390), (1, 70)), heads=Heads(8, 1, 32), options=replace(PLAIN, window=70)),
    # Chunks that the decode kernel computes, a token at a time.
    AttentionCase("tokens as rows", ((3, 20), (0, 0), (2, 2), (0, 0), (1, 30)), tokens=6, padded_rows=6, heads=ONE, page_size=32),
)
BY_NAME = {case.name: case for case in CASES}
LATENT = Heads(16, 1, 96)
LATENT_CASES = (
    AttentionCase("latents", MIXED, heads=LATENT, options=SHORT_LATENTS),
    AttentionCase("pages of 8", ((1, 17), (3, 21)), heads=LATENT, options=SHORT_LATENTS, page_size=8),
    AttentionCase("two tiles a token", ((1, 17), (2, 70)), heads=Heads(128, 1, 96), options=SHORT_LATENTS, page_size=32),
    AttentionCase("heads with padding", MIXED, heads=Heads(5, 1, 48), options=replace(PLAIN, value_dim=32), page_size=64),
    AttentionCase("more than a tile", ((1, 17), (2, 70)), heads=Heads(72, 1, 48), options=replace(PLAIN, value_dim=32)),
    AttentionCase("less than a tile", ((1, 17),), tokens=1, heads=Heads(8, 1, 80), options=SHORT_LATENTS),
    AttentionCase("of DeepSeek", ((1, 130), (2, 20)), heads=Heads(16, 1, 576), options=LATENTS, page_size=64),
    # More blocks of keys than slots, and blocks without and with a mask in one tile.
    AttentionCase("a long chunk", ((9, 390),), heads=LATENT, options=SHORT_LATENTS, page_size=64),
    # Three parts of the first row beside rows that are not cut; tiles of two tokens.
    AttentionCase("rows in parts", ((1, 1500), (1, 20), (3, 300)), heads=Heads(32, 1, 80), options=SHORT_LATENTS, page_size=64),
    AttentionCase(
        "tokens as rows", ((3, 20), (0, 0), (2, 2), (0, 0), (1, 30)), tokens=6, padded_rows=6, heads=LATENT, options=SHORT_LATENTS
    ),
)


def of_core(cases, *names):
    """The cases; those of other names are extended."""
    return tiered(cases, [case for case in cases if case.name in names])


@pytest.fixture(autouse=True)
def no_races(capfd):
    yield
    assert "RACE DETECTED" not in capfd.readouterr().out


def check(case, dtype):
    result = check_attention(case, dtype, "mosaic_gpu_interpreted")
    assert result.verdict == "pass", result


@pytest.mark.parametrize("case", of_core(TINY, "everything, decodes"), ids=lambda case: case.name)
def test_tiny_case(case):
    check(case, "bfloat16")


@pytest.mark.extended  # a chunk whose keys are shared, and the kernel of prompts that computes these cases, are below
@pytest.mark.parametrize(("page_size", "dtype"), [(64, "bfloat16"), (16, "float8")])
@pytest.mark.parametrize("case", SEVERAL, ids=lambda case: case.name)
def test_several_queries(case, page_size, dtype):
    check(replace(case, page_size=page_size), dtype)


# One of each: the smallest and larger pages, heads that fill no tile, a split row, a prompt, keys that are shared in windows.
@pytest.mark.parametrize(
    "case",
    of_core(CASES, "odd group, pages of 8", "huge scores, decodes", "a row in parts", "a long chunk", "windows of a short chunk"),
    ids=lambda case: case.name,
)
def test_case(case):
    check(case, "float16")


UNSPLIT = "mosaic_gpu_unsplit_interpreted"


@pytest.mark.parametrize("case", of_core(SEVERAL, "several queries"), ids=lambda case: case.name)
def test_unsplit(case):
    result = check_attention(case, "bfloat16", UNSPLIT)
    assert result.verdict == "pass", result


@pytest.mark.parametrize(
    "options",
    [replace(PLAIN, window=50, soft_cap=5.0), pytest.param(PLAIN, marks=pytest.mark.extended)],
    ids=["window and cap", "plain"],
)
def test_unsplit_gives_a_token_the_same_bits_however_its_row_is_computed(options):
    """The last tokens of a row of 150 keys: alone, as chunks of several sizes, and beside other rows."""
    batch = make_batch(((70, 150), (1, 70), (3, 90)), heads=Heads(2, 1, 32), page_size=16, dtype="bfloat16")
    q, pages, table, start, length = batch.arrays()
    call = jax.jit(partial(ragged_paged_attention, layer=1, options=options, implementation=UNSPLIT))
    together = np.asarray(call(q, pages, table, start, length))[:70]
    for first, last in ((69, 70), (30, 63)):
        keys = np.array([80 + last], np.int32)
        one = call(q[first:last], pages, table[:1], np.array([0, last - first], np.int32), keys)
        np.testing.assert_array_equal(np.asarray(one), together[first:last], err_msg=f"tokens {first} to {last}")


@pytest.mark.parametrize(
    "case",
    of_core(LATENT_CASES, "heads with padding", "of DeepSeek", "tokens as rows"),
    ids=lambda case: case.name,
)
def test_latents(case):
    check(case, "float16" if case.page_size == 64 else "bfloat16")


@pytest.mark.parametrize(
    "name",
    tiered(
        ["everything", "pages of 8", "head dim 256", "huge scores", "chunks, everything", "a long row", "a long chunk"],
        ["chunks, everything"],
    ),
)
def test_float8(name):
    check(BY_NAME[name], "float8")


@pytest.mark.parametrize("name", tiered(["everything", "pages of 8", "a long row", "chunks, everything"], ["everything"]))
def test_int8(name):
    check(BY_NAME[name], "int8")


@pytest.mark.parametrize(
    ("rows", "tokens"),
    [(((1, 17), (1, 70)), 2), pytest.param(MIXED, None, marks=pytest.mark.extended)],
    ids=["decodes", "mixed"],
)
def test_float8_with_scales_and_queries_in_float16(rows, tokens):
    statics: dict[str, Any] = {"layer": 1, "options": PLAIN}
    heads = Heads(4, 2, 64)
    batch = make_batch(
        rows, heads=heads, tokens=tokens, page_size=8, dtype="float16", kv_dtype="float8_e4m3fn", scale_dtype="bfloat16"
    )
    call = jax.jit(partial(ragged_paged_attention, implementation="mosaic_gpu_interpreted", **statics))
    got = np.asarray(call(*batch.arrays(), kv_scales=batch.kv_scales)).astype(np.float64)
    want = reference.ragged_paged_attention(*batch.arrays(), kv_scales=batch.kv_scales, **statics)
    assert np.abs(got - want).max() < TOLERANCE["float8"].max_abs


@pytest.mark.parametrize(
    ("rows", "tokens"),
    [(((1, 130), (1, 133)), 2), pytest.param(((1, 130), (3, 130)), None, marks=pytest.mark.extended)],
    ids=["decodes", "mixed"],
)
def test_pages_before_the_window_may_hold_anything(rows, tokens):
    batch = make_batch(rows, tokens=tokens, heads=Heads(1, 1, 32), page_size=32, dtype="float16")
    options = replace(PLAIN, window=20)
    call = jax.jit(partial(ragged_paged_attention, layer=1, options=options, implementation="mosaic_gpu_interpreted"))
    want = np.asarray(call(*batch.arrays()))
    batch.kv_pages[:, batch.page_table[:, :3].ravel()] = np.nan  # up to key 95
    np.testing.assert_array_equal(np.asarray(call(*batch.arrays())), want)
    assert np.isfinite(want).all()
