"""The gate notices what is wrong: each way to be wrong, put into an implementation that was right, fails a case."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.grouped_matmul import api as grouped
from pallas_kernels.grouped_matmul import xla as grouped_xla
from pallas_kernels.kv_write import api as write
from pallas_kernels.kv_write import xla as write_xla
from pallas_kernels.matmul import api as matmul
from pallas_kernels.matmul import xla as matmul_xla
from pallas_kernels.parity.cases import (
    ATTENTION_CASES,
    DTYPES,
    GROUPED_CASES,
    MATMUL_CASES,
    ROTATE_ATTEND_CASES,
    ROTATE_CASES,
    WRITE_CASES,
)
from pallas_kernels.parity.gate import (
    check_attention,
    check_grouped,
    check_matmul,
    check_rotate,
    check_rotate_attend,
    check_write,
)
from pallas_kernels.parity.operations import Operation, check_all
from pallas_kernels.parity.rounding import ROUND_CASES, check_round
from pallas_kernels.ragged_paged_attention import api as attention
from pallas_kernels.ragged_paged_attention import xla as attention_xla
from pallas_kernels.registry import Implementation, Target
from pallas_kernels.rotate_and_write import api as rotate
from pallas_kernels.rotate_and_write import xla as rotate_xla
from pallas_kernels.rotate_write_attend import api as rotate_attend
from pallas_kernels.rotate_write_attend import composed
from pallas_kernels.round_rows import api as rounding
from pallas_kernels.round_rows import xla as round_xla

CPU = Target("cpu")
ATTENTION = {case.name: case for case in ATTENTION_CASES}
GROUPED = {case.name: case for case in GROUPED_CASES}
MATMUL = {case.name: case for case in MATMUL_CASES}
ROTATE_ATTEND = {case.name: case for case in ROTATE_ATTEND_CASES}
ROTATE = {case.name: case for case in ROTATE_CASES}
WRITE = {case.name: case for case in WRITE_CASES}


def only(monkeypatch, module, function, **options):
    monkeypatch.setattr(module, "IMPLEMENTATIONS", (Implementation(function.__name__, function, limits="tests", **options),))
    return function.__name__


def attend_as(change):
    """XLA's attention with its output changed."""

    def attend(q, *arrays, **options):
        return change(attention_xla.ragged_paged_attention(q, *arrays, **options))

    return attend


@pytest.mark.parametrize(
    ("case", "change", "reason"),
    [
        ("one token", lambda out: out * 1.02, "max abs must be below 0.01"),
        ("one token", lambda out: -out, "cosine must be above 0.999"),
        ("one token", lambda out: out.at[0, 0, 0].set(jnp.nan), "the output is not finite"),
        ("padding", lambda out: out.at[-1].set(1.0), "padding tokens are not 0"),
        ("one token", lambda out: out.astype(jnp.float32), "the output is float32, not bfloat16"),
    ],
)
def test_wrong_attention(monkeypatch, case, change, reason):
    name = only(monkeypatch, attention, attend_as(change))
    result = check_attention(ATTENTION[case], "bfloat16", name, CPU)
    assert result.verdict == "FAIL"
    assert reason in result.reason


def test_a_small_error_passes_and_is_shown(monkeypatch):
    name = only(monkeypatch, attention, attend_as(lambda out: out * 0.998))
    result = check_attention(ATTENTION["one token"], "float16", name, CPU)
    assert result.verdict == "pass"
    assert 5e-4 < result.max_abs < 2e-3
    assert 1e-3 < result.max_rel < 3e-3
    assert result.cosine > 0.99999


def written(change):
    """XLA's write with its caches changed."""

    def kv_write(*arrays, **options):
        return change(*write_xla.kv_write(*arrays, **options))

    return kv_write


@pytest.mark.parametrize(
    ("dtype", "change", "reason"),
    [
        ("bfloat16", lambda pages, scales: (pages.at[1, 1, 0, 0, 0, 0].multiply(2), scales), "bit by bit"),
        ("bfloat16", lambda pages, scales: (pages.at[0, 2].set(0), scales), "bit by bit"),
        ("float8", lambda pages, scales: (pages.at[1, 1, 0, 0, 0].set(1), scales), "half an ulp"),
        ("float8", lambda pages, scales: (pages, scales * 1.01), "slots that were not named"),
        ("float8", lambda pages, scales: (pages, scales.at[1, 1, 0, 0, 0].multiply(1.01)), "scales must be"),
        ("float8", lambda pages, scales: (pages.at[0, 2].set(0), scales), "slots that were not named"),
    ],
)
def test_wrong_writes(monkeypatch, dtype, change, reason):
    name = only(monkeypatch, write, written(change))
    result = check_write(WRITE["any slots"], dtype, name, CPU)
    assert result.verdict == "FAIL"
    assert reason in result.reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda q, pages: (q.at[2].multiply(-1), pages), "max abs must be below 0.01"),
        (lambda q, pages: (q.astype(jnp.float32), pages), "the queries are float32, not bfloat16"),
        (lambda q, pages: (q, pages.at[1, 1, 0, 0, 0].multiply(-1)), "max abs must be below 0.01"),
        (lambda q, pages: (q, pages.at[1, 1, 1, 0, 0, 0].multiply(2)), "bit by bit"),
        (lambda q, pages: (q, pages.at[0, 2].set(0)), "bit by bit"),
    ],
)
def test_wrong_rotations(monkeypatch, change, reason):
    name = only(monkeypatch, rotate, lambda *arrays, **options: change(*rotate_xla.rotate_and_write(*arrays, **options)))
    result = check_rotate(ROTATE["any slots"], "bfloat16", name, CPU)
    assert result.verdict == "FAIL"
    assert reason in result.reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda out, pages: (out.at[1].multiply(-1), pages), "max abs must be below 0.01"),
        (lambda out, pages: (out.astype(jnp.float32), pages), "the output is float32, not bfloat16"),
        (lambda out, pages: (out.at[-1].set(1), pages), "padding tokens are not 0"),
        (lambda out, pages: (out, pages.at[1, 1:, 0].multiply(-1)), "bit by bit"),
        (lambda out, pages: (out, pages.at[1, 1:, 1].multiply(2)), "bit by bit"),
        (lambda out, pages: (out, jnp.where(jnp.isnan(pages), 0, pages)), "bit by bit"),
    ],
)
def test_wrong_attention_that_rotates_and_writes(monkeypatch, change, reason):
    def attend(*arrays, **options):
        return change(*composed.rotate_write_attend(*arrays, target=CPU, **options))

    name = only(monkeypatch, rotate_attend, attend)
    result = check_rotate_attend(ROTATE_ATTEND["padding"], "bfloat16", name, CPU)
    assert result.verdict == "FAIL"
    assert reason in result.reason


@pytest.mark.parametrize("case", ["rows", "a sum and its norm", "a gate"])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda values, steps: (values, steps.at[0].multiply(1.02)), "a step is not the largest magnitude over 448"),
        (lambda values, steps: (jnp.roll(values, 1, axis=-1), steps), "a number is not rounded to the nearest"),
        (lambda values, steps: (_truncated(values), steps), "a number is not rounded to the nearest"),
        (lambda values, steps: (values.at[0].set(jnp.nan), steps), "the output is not finite"),
    ],
)
def test_wrong_rounding(monkeypatch, case, change, reason):
    def changed(function):
        def run(*arrays, **options):
            done = function(*arrays, **options)
            return (done[0], change(*done[1])) if function is round_xla.round_normed else change(*done)

        return (Implementation("changed", run, limits="tests"),)

    for table, function in (
        ("ROWS", round_xla.round_rows),
        ("NORMED", round_xla.round_normed),
        ("GATED", round_xla.round_gated),
    ):
        monkeypatch.setattr(rounding, table, changed(function))
    result = check_round({case.name: case for case in ROUND_CASES}[case], "bfloat16", "changed", CPU)
    assert result.verdict == "FAIL"
    assert reason in result.reason


def _truncated(values):
    """Without the last bit of the mantissa."""
    bits = jax.lax.bitcast_convert_type(values, jnp.uint8) & jnp.uint8(0xFE)
    return jax.lax.bitcast_convert_type(bits, values.dtype)


def test_a_sum_that_is_wrong_and_a_nan_that_is_lost(monkeypatch):
    cases = {case.name: case for case in ROUND_CASES}

    def wrong_sum(*arrays, **options):
        total, rounded = round_xla.round_normed(*arrays, **options)
        return total.at[0, 0].add(1), rounded

    monkeypatch.setattr(rounding, "NORMED", (Implementation("changed", wrong_sum, limits="tests"),))
    assert check_round(cases["a norm"], "bfloat16", "changed", CPU).reason == "the sum is another"

    def without_nan(x):
        return round_xla.round_rows(jnp.nan_to_num(x))

    monkeypatch.setattr(rounding, "ROWS", (Implementation("changed", without_nan, limits="tests"),))
    assert check_round(cases["rows"], "bfloat16", "changed", CPU).reason == "a number that is NaN is none afterwards"


@pytest.mark.parametrize(
    ("case", "change", "reason"),
    [
        ("mixed", lambda out: out.astype(jnp.bfloat16).astype(jnp.float32), "max abs must be below 2e-05"),
        ("mixed", lambda out: jnp.roll(out, 1, axis=0).at[0].set(0), "rows of nobody are not 0"),
        ("mixed", lambda out: out.at[0, 0].set(jnp.nan), "the output is not finite"),
        ("small", lambda out: out.at[5:].multiply(-1), "cosine must be above 0.999999"),
        ("result of the dtype", lambda out: out.astype(jnp.float32), "the output is float32, not bfloat16"),
    ],
)
def test_wrong_products(monkeypatch, case, change, reason):
    name = only(monkeypatch, grouped, lambda *arrays, **options: change(grouped_xla.grouped_matmul(*arrays, **options)))
    result = check_grouped(GROUPED[case], "bfloat16", name, CPU)
    assert result.verdict == "FAIL"
    assert reason in result.reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda out: out.astype(jnp.bfloat16).astype(jnp.float32), "max abs must be below 2e-05"),
        (lambda out: out.at[0, 0].set(jnp.nan), "the output is not finite"),
        (lambda out: out.astype(jnp.bfloat16), "the output is bfloat16, not float32"),
    ],
)
def test_wrong_products_of_packed_matrices(monkeypatch, change, reason):
    name = only(monkeypatch, matmul, lambda x, matrix: change(matmul_xla.matmul(x, matrix)))
    result = check_matmul(MATMUL["odd"], "bfloat16", name, CPU)
    assert result.verdict == "FAIL"
    assert reason in result.reason


def test_the_null_page_may_hold_anything(monkeypatch):
    def change(pages, scales):
        return pages.at[:, 0].set(7), None if scales is None else scales.at[:, 0].set(7)

    name = only(monkeypatch, write, written(change))
    assert {check_write(WRITE["padding"], dtype, name, CPU).verdict for dtype in DTYPES} == {"pass"}


def test_what_raises_and_what_is_unsupported(monkeypatch):
    def broken(*arrays, **options):
        raise RuntimeError("no such tile")

    name = only(monkeypatch, attention, broken, supports=lambda problem: "it does not" if problem.page_size == 32 else None)
    assert check_attention(ATTENTION["mixed"], "float32", name, CPU).reason == "RuntimeError: no such tile"
    result = check_attention(ATTENTION["pages of 32"], "float32", name, CPU)
    assert result.verdict == "unsupported"
    assert result.reason.endswith("it does not; it supports tests")


def test_a_run_over_implementations():
    def named(name, **options):
        return Implementation(name, None, limits="tests", **options)

    def check(case, dtype, implementation, target):
        return (case.name, dtype, implementation, target)

    table = (named("here"), named("elsewhere", runs_on=lambda target: "no"), named("dreamt", interpreted=True))
    cases = (WRITE["zeros"], WRITE["a long chunk"])
    operation = Operation("any", implementations=table, cases=cases, check=check, dtypes=("float32", "float16"))
    here: list[Any] = [(case, "float16", "here", CPU) for case in ("zeros", "a long chunk")]
    assert list(check_all([operation], ["float16", "float8"], CPU, interpret=False)) == here
    assert list(check_all([operation], ["float16"], CPU, interpret=True)) == [*here, ("zeros", "float16", "dreamt", CPU)]


def test_unused_memory_holds_nan():
    for dtype in DTYPES:
        batch = ATTENTION["padding"].batch(dtype)
        pages = batch.kv_pages.astype(np.float32)
        if batch.kv_scales is not None:  # whose NaN is all that int8 has
            pages *= batch.kv_scales[..., None]
        assert np.isnan(pages[0]).all()
        assert np.isnan(pages[1, 0]).all()
        assert np.isnan(batch.q[batch.query_start[-1] :].astype(np.float32)).all()
        used = ~np.isnan(pages[1]).any(axis=(1, 2, 4))  # [P, S]
        assert used.sum() == batch.kv_length.sum()
        if batch.kv_scales is not None:
            np.testing.assert_array_equal(np.isnan(batch.kv_scales), np.isnan(pages).all(axis=-1))
