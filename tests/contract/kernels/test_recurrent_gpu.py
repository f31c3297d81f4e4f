"""gated_linear_attention and causal_conv1d in Mosaic GPU: interpreted against the reference, compiled for an H100 in place."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from jaxserve.aot.target import Target
from jaxserve.executor.compile_cache import nothing_kept
from pallas_kernels.causal_conv1d import causal_conv1d
from pallas_kernels.causal_conv1d.implementations import IMPLEMENTATIONS as CONV
from pallas_kernels.gated_linear_attention import gated_linear_attention
from pallas_kernels.gated_linear_attention.implementations import IMPLEMENTATIONS as LINEAR
from pallas_kernels.parity.features import CONV as CONV_PROBLEM
from pallas_kernels.parity.features import LINEAR as LINEAR_PROBLEM
from pallas_kernels.parity.recurrence import (
    CONV_CASES,
    DELTA,
    LAYER,
    LINEAR_CASES,
    PLAIN,
    LinearCase,
    LinearShape,
    check_conv,
    check_linear,
)
from pallas_kernels.parity.states import PLACES, Step
from pallas_kernels.registry import Target as KernelTarget
from pallas_kernels.registry import pick
from pallas_kernels.state_rows import StateRows
from tests.support.tiers import tiered

from . import ptx
from .needs import MOSAIC, PLUGIN

pytestmark = MOSAIC
INTERPRETED = "mosaic_gpu_interpreted"
DRAFTS = "drafts"  # the steps that run in every dtype


# Snapshots, drafts, rows without tokens and prompts beside short rows, each dtype, the widest keys, what is not supported.
LINEAR_CORE = (
    ("delta, few tokens a row", "bfloat16"),
    ("delta, padding rows behind", "bfloat16"),
    ("delta, mixed", "bfloat16"),
    ("delta, drafts", "bfloat16"),
    ("plain, decodes and padding", "bfloat16"),
    ("plain, drafts beside a prompt", "bfloat16"),
    ("plain, drafts", "float32"),
    ("wide, drafts", "float16"),
    ("odd widths, drafts", "float16"),
)
CONV_CORE = (
    ("512 channels, 4 taps, few tokens a row", "bfloat16"),
    ("512 channels, 4 taps, drafts", "float32"),
    ("128 channels, 3 taps, decodes", "bfloat16"),
    ("128 channels, 3 taps, no row", "bfloat16"),
    ("384 channels, 2 taps, drafts", "float16"),
    ("24 channels, 4 taps, drafts", "bfloat16"),
)


def cases(every, core):
    tiny = [case for case in every if case.tiny]
    pairs = [(case, "bfloat16") for case in tiny]
    pairs += [(case, dtype) for case in tiny if case.step.name == DRAFTS for dtype in ("float32", "float16")]
    chosen = [(case, dtype) for case, dtype in pairs if (case.name, dtype) in core]
    assert len(chosen) == len(core)
    return tiered(pairs, chosen)


@pytest.fixture(autouse=True)
def no_races(capfd):
    yield
    assert "RACE DETECTED" not in capfd.readouterr().out


@pytest.mark.parametrize(("case", "dtype"), cases(LINEAR_CASES, LINEAR_CORE), ids=lambda value: getattr(value, "name", value))
def test_linear(case, dtype):
    result = check_linear(case, dtype, INTERPRETED)
    assert result.verdict == ("unsupported" if case.name.startswith("odd widths") else "pass"), result


@pytest.mark.parametrize(("case", "dtype"), cases(CONV_CASES, CONV_CORE), ids=lambda value: getattr(value, "name", value))
def test_conv(case, dtype):
    result = check_conv(case, dtype, INTERPRETED)
    assert result.verdict == ("unsupported" if case.channels % 128 else "pass"), result


def test_a_row_in_chunks_among_others_gives_the_same_bits():
    whole = LinearCase("", Step("a chunk and a token", (5, 1), new=(0,)), LinearShape(1, 2, 32, 32, DELTA)).arrays("bfloat16")
    call = jax.jit(partial(gated_linear_attention, layer=LAYER, options=DELTA, implementation=INTERPRETED))
    want, left = (np.asarray(array) for array in call(*whole))
    states, parts = whole[5], []
    for first, last, place in ((0, 3, 0), (3, 5, 1)):
        count = last - first
        words = ([0, count], [0] * count, [place], [[1]], [PLACES], [0])
        alone = StateRows(*(jnp.asarray(each, jnp.int32) for each in words))
        out, states = call(*(array[first:last] for array in whole[:5]), states, alone)
        parts.append(np.asarray(out))
    np.testing.assert_array_equal(np.concatenate(parts), want[:5])
    np.testing.assert_array_equal(np.asarray(states)[LAYER, 1], left[LAYER, 1])


@pytest.mark.parametrize(
    ("table", "problem", "changes", "reason"),
    [
        (LINEAR, LINEAR_PROBLEM, {}, None),
        (LINEAR, LINEAR_PROBLEM, {"tokens": 2048}, None),
        (LINEAR, LINEAR_PROBLEM, {"key_dim": 72}, "keys must have a multiple of 16 numbers and at most 256, not 72"),
        (LINEAR, LINEAR_PROBLEM, {"key_dim": 512}, "keys must have a multiple of 16 numbers and at most 256, not 512"),
        (LINEAR, LINEAR_PROBLEM, {"value_dim": 72}, "values must have a multiple of 16 numbers, not 72"),
        (CONV, CONV_PROBLEM, {}, None),
        (CONV, CONV_PROBLEM, {"tokens": 512}, "512 tokens of 64 rows are more than the 1 a row of decodes and drafts"),
        (CONV, CONV_PROBLEM, {"channels": 192}, "there must be a multiple of 128 channels, not 192"),
        (CONV, CONV_PROBLEM, {"width": 9}, "there can be 8 taps at most, not 9"),
    ],
)
def test_choice_on_a_hopper(table, problem, changes, reason):
    entry, passed = pick("", table, KernelTarget("gpu", (9, 0)), replace(problem, **changes))
    assert passed[:1] == (() if reason is None else (f"not in mosaic_gpu: {reason}",))
    assert entry.name == ("mosaic_gpu" if reason is None else "xla")


# As Qwen3-Next's, Granite 4's and Nemotron Nano's; the widest keys; the narrowest.
@PLUGIN
@pytest.mark.parametrize(
    ("shape", "dtype", "drafts", "registers"),
    [
        (LinearShape(16, 32, 128, 128, DELTA), "bfloat16", 0, 104),
        (LinearShape(1, 48, 128, 64, PLAIN), "float32", 3, 104),
        pytest.param(LinearShape(8, 128, 128, 80, PLAIN), "float16", 0, 104, marks=pytest.mark.extended),
        (LinearShape(2, 4, 256, 256, DELTA), "bfloat16", 3, 168),
        pytest.param(LinearShape(8, 8, 16, 16, DELTA), "bfloat16", 0, 104, marks=pytest.mark.extended),
    ],
)
def test_compiles_for_an_h100_in_place(capfd, monkeypatch, shape, dtype, drafts, registers):
    """Two layers, cut as models cut them: two kernels each, and nothing beside them."""
    monkeypatch.setenv("MOSAIC_GPU_DUMP_PTXAS", "1")
    device = Target.parse("h100").devices()[0]
    rows, width, (keys, values) = 8, 1 + drafts, (shape.key_heads * shape.key_dim, shape.heads * shape.value_dim)
    tokens, channels = rows * width, 2 * keys + values

    def array(kind, *sizes):
        return jax.ShapeDtypeStruct(sizes, jnp.dtype(kind), sharding=SingleDeviceSharding(device))

    def two_layers(inputs, memory, x, weight, decay, beta, rows):
        results = []
        for layer, product in enumerate(x):
            mixed, inputs = causal_conv1d(product, weight, None, inputs, rows, layer=layer, target=KernelTarget.of(device))
            cuts = (keys, 2 * keys) if shape.options.delta else (values, values + keys)
            parts = jnp.split(mixed.reshape(tokens, 1, channels), cuts, axis=2)
            q, k, v = parts if shape.options.delta else (parts[2], parts[1], parts[0])
            q, k = (part.reshape(tokens, shape.key_heads, shape.key_dim) for part in (q, k))
            v = v.reshape(tokens, shape.heads, shape.value_dim)
            attend = partial(gated_linear_attention, layer=layer, options=shape.options, target=KernelTarget.of(device))
            out, memory = attend(q, k, v, decay, beta, memory, rows)
            results.append(out)
        return inputs, memory, results

    words = ((rows + 1,), (tokens,), (rows,), (rows, width), (rows,), (rows,))
    inputs, memory = array(dtype, 2, 99, 3, channels), array("float32", 2, 99, shape.heads, shape.key_dim, shape.value_dim)
    others = [array(dtype, tokens, channels)] * 2, array(dtype, 4, channels), *[array("float32", tokens, shape.heads)] * 2
    with nothing_kept():
        lowered = jax.jit(two_layers, donate_argnums=(0, 1)).lower(
            inputs, memory, *others, StateRows(*(array("int32", *size) for size in words))
        )
        compiled = lowered.compile()
    text, used = compiled.as_text(), compiled.memory_analysis()
    assert text is not None
    assert used is not None
    assert len(re.findall(r'custom_call_target="mosaic_gpu', text)) == 4
    assert not re.findall(r"= \S+ (?:copy|copy-start|fusion|slice|concatenate|while)\(", text)
    assert used.alias_size_in_bytes == sum(table.size * table.dtype.itemsize for table in (inputs, memory))
    printed = capfd.readouterr()
    by_kernel = ptx.usage(printed.out + printed.err)
    assert set(by_kernel) == {"causal_conv1d", "gated_linear_attention"}
    assert all(usage.spilled == 0 for usage in by_kernel.values())
    assert by_kernel["gated_linear_attention"].registers <= registers  # 104: four thread blocks and more a multiprocessor
    assert by_kernel["causal_conv1d"].registers <= 64


@PLUGIN
@pytest.mark.parametrize("options", [DELTA, pytest.param(PLAIN, marks=pytest.mark.extended)], ids=["delta", "plain"])
def test_a_prompt_beside_decodes_copies_no_table(options):
    """Short rows are one kernel, and the long ones' chunks a loop; states are written where they lie by both."""
    device = Target.parse("h100").devices()[0]
    tokens, rows, heads, dim, places = 512, 64, 4, 128, 999

    def array(kind, *sizes):
        return jax.ShapeDtypeStruct(sizes, jnp.dtype(kind), sharding=SingleDeviceSharding(device))

    words = ((rows + 1,), (tokens,), (rows,), (rows, 1), (rows,), (rows,))
    memory = array("float32", 2, places, heads, dim, dim)
    arguments = *[array("bfloat16", tokens, heads, dim)] * 3, *[array("float32", tokens, heads)] * 2, memory
    call = partial(gated_linear_attention, layer=1, options=options, target=KernelTarget.of(device))
    with nothing_kept():
        lowered = jax.jit(call, donate_argnums=5).lower(*arguments, StateRows(*(array("int32", *size) for size in words)))
        compiled = lowered.compile()
    text, used = compiled.as_text(), compiled.memory_analysis()
    assert text is not None
    assert used is not None
    assert len(re.findall(r'custom_call_target="mosaic_gpu', text)) == 1
    assert " while(" in text
    table = memory.size * memory.dtype.itemsize
    assert used.alias_size_in_bytes == table
    assert used.temp_size_in_bytes < table // 8
