"""Schemes and layouts, each with each: numbers, products, and what a scheme that nobody knows yet needs."""

from dataclasses import replace
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from pallas_kernels import native
from pallas_kernels.matmul import (
    CodePanels,
    Layout,
    Matrix,
    OutputsFirst,
    Panels,
    Rows,
    as_matrix,
    counted,
    cpu_native,
    matmul,
    pack,
    packed_shape,
    skips_padding,
)
from pallas_kernels.quantization import FP8, SCHEMES, W8A8, Float8Weight, FourBit
from pallas_kernels.quantization.four_bit import NUMBERS
from sharding import make_mesh, partition_spec
from tests.support.schemes import Groups

KNOWN = [*SCHEMES.values(), Groups()]
DIVIDED = pytest.mark.parametrize(
    "scheme", [scheme for scheme in KNOWN if not scheme.native_only], ids=lambda scheme: scheme.name
)
packed = jax.jit(pack, static_argnames=("layout", "scheme", "stacked"))


@jax.jit
def read(matrix: Matrix) -> tuple[jax.Array, jax.Array]:
    """Its numbers, and two rows of them; another program than the one that packs, which might round nothing."""
    return matrix.plain(), matrix.take(jnp.asarray([1, 0]))


@jax.jit
def restored(matrix: Matrix) -> jax.Array:
    return matrix.layout.restore(matrix.values)


@partial(jax.jit, static_argnames="implementations")
def products(x: jax.Array, matrix: Matrix, implementations: tuple[str | None, ...] = (None,)) -> list[jax.Array]:
    return [matmul(x, matrix, implementation=name) for name in implementations]


def layouts(shape, inputs, scheme):
    """A parameter's layouts: inputs that are the first dimensions, or the last."""
    first = inputs == tuple(range(len(inputs)))
    if isinstance(scheme, FP8):
        return [OutputsFirst(inputs), Layout(inputs)]
    if isinstance(scheme, FourBit):
        return [Layout(inputs), *([CodePanels(inputs, shape)] if first else [])]
    return [Layout(inputs), *([Panels(inputs, shape)] if first else []), *([] if first else [Rows(inputs)])]


SHAPES = [((6, 5), (0,)), ((70, 130), (0,)), ((4, 2, 66), (0,)), ((2, 6, 65), (0, 1)), ((131, 8), (1,))]
SHAPES += [((256, 66), (0,)), ((3, 32, 5), (0, 1)), ((7, 64), (1,))]
FITTED = [
    pytest.param(fitted, shape, inputs, id=f"{scheme.name}-{'x'.join(map(str, shape))}")
    for scheme in KNOWN
    for shape, inputs in SHAPES
    if (fitted := scheme.fitted(shape, inputs)) is not None and (scheme.name != "groups" or shape[inputs[-1]] % 2 == 0)
]
DTYPES = ("float32", "bfloat16", "float16")
NAMED_SHAPES = [pytest.param(shape, inputs, id="x".join(map(str, shape))) for shape, inputs in SHAPES]


def in_turn(cases, dtypes):
    """The cases with each dtype; those outside of the dtypes' turns are extended."""
    return [
        pytest.param(
            *case.values,
            dtype,
            id=f"{case.id}-{dtype}",
            marks=() if (index + index // len(SHAPES)) % len(dtypes) == number else pytest.mark.extended,
        )
        for index, case in enumerate(cases)
        for number, dtype in enumerate(dtypes)
    ]


@pytest.mark.parametrize(("scheme", "shape", "inputs"), FITTED)
@given(seed=st.integers(0, 2**31), size=st.sampled_from([1e-30, 1e-3, 1.0, 1e4]))
@settings(max_examples=5, deadline=None)
def test_numbers_come_back_as_near_as_the_scheme_says(scheme, shape, inputs, seed, size):
    """The same whatever the layout, and as numpy rounds them."""
    numbers = (np.random.default_rng(seed).standard_normal(shape) * size).astype(np.float32)
    values, scales = scheme.quantize(numbers, inputs, np)
    for layout in layouts(shape, inputs, scheme):
        matrix, described = packed(numbers, layout, scheme), packed_shape(numbers, layout, scheme)
        plain, rows = (np.asarray(part) for part in read(matrix))
        assert matrix.shape == shape
        assert cast(Any, jax.tree.structure(matrix)) == jax.tree.structure(described)
        assert [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(matrix)] == [
            (leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(described)
        ]
        # XLA's quotient may be another in its last bit, which decides between two numbers that are as near.
        most = 1e-3 if scheme.name.startswith("fp8") else 0.0
        assert np.mean(np.asarray(restored(matrix)) != values) <= most
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), matrix.scales, scales)
        error = np.abs(plain.astype(np.float64) - numbers)
        bound = {
            "none": 0.0,
            "int8": 0.5001 * np.maximum(np.abs(numbers).max(axis=inputs, keepdims=True) / 127, 2.0**-126),
            "w8a8": 0.5001 * np.maximum(np.abs(numbers).max(axis=inputs, keepdims=True) / 127, 2.0**-126),
            # Half an ulp of three bits, and of the numbers that have no leading 1.
            "fp8_weight": np.abs(numbers) / 15.9 + np.abs(numbers).max(axis=inputs, keepdims=True) / 448 / 1023,
            "int4": np.abs(numbers).max(axis=inputs, keepdims=True) / 7.999,  # one side of a group has a step less
            "groups": np.ptp(numbers, axis=inputs, keepdims=True) / 29,
            "fp8": np.maximum(np.abs(numbers) / 15.99, np.abs(numbers).max(axis=inputs, keepdims=True) / 448 * 2.0**-9.99),
        }[scheme.name]
        assert (error <= bound).all()
        np.testing.assert_array_equal(rows, plain[[1, 0]])


@pytest.mark.parametrize(
    "scheme", [scheme for scheme in SCHEMES.values() if scheme.name != "none"], ids=lambda scheme: scheme.name
)
@pytest.mark.parametrize(("shape", "inputs"), [((64, 66), (0,)), ((3, 32, 5), (0, 1))])
def test_a_stack_is_one_matrix_after_the_other(scheme, shape, inputs):
    numbers = np.random.default_rng(0).standard_normal((3, *shape)).astype(np.float32)
    scheme = scheme.fitted(shape, inputs)
    for layout in (layout for layout in layouts(shape, inputs, scheme) if layout.native):
        stack = packed(numbers, layout, scheme, stacked=True)
        each = [packed(one, layout, scheme) for one in numbers]
        assert stack.shape == (3, *shape)
        assert (stack.inputs, stack.outputs) == (each[0].inputs, each[0].outputs)
        assert not skips_padding(stack)
        described = packed_shape(numbers, layout, scheme, stacked=True)
        assert cast(Any, jax.tree.structure(stack)) == jax.tree.structure(described)
        for parts, shown, *ones in zip(*map(jax.tree.leaves, (stack, described, *each)), strict=True):
            assert (parts.shape, parts.dtype) == (shown.shape, shown.dtype)
            np.testing.assert_array_equal(parts, np.stack(ones))
        np.testing.assert_array_equal(jax.jit(Matrix.plain)(stack), np.stack([read(one)[0] for one in each]))


@pytest.mark.parametrize(
    ("scheme", "shape", "inputs", "dtype"),
    in_turn([case for case in FITTED if case.values[0] not in (W8A8(), FP8())], DTYPES[:2]),
)
def test_products_are_those_of_the_numbers(scheme, shape, inputs, dtype):
    rng = np.random.default_rng(len(shape))
    row = [shape[axis] for axis in inputs]
    x = rng.integers(-4, 5, (3, *row)).astype(jnp.dtype(dtype))  # exact in every dtype
    parameter = rng.standard_normal(shape).astype(jnp.dtype(dtype))
    names = ("xla",) if scheme.name == "groups" else ("xla", None)  # no native kernel knows it
    for layout in layouts(shape, inputs, scheme):
        matrix = packed(parameter, layout, scheme)
        want = np.tensordot(x.astype(np.float64), np.asarray(read(matrix)[0], np.float64), (range(1, x.ndim), inputs))
        for got in products(x, matrix, names):
            assert got.dtype == np.float32
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("shape", "inputs", "dtype"), in_turn(NAMED_SHAPES, DTYPES))
def test_rows_are_rounded_too_in_w8a8(shape, inputs, dtype):
    """Products are those of whole numbers, each row's its own; rows of zeros and tiny ones are rows, too."""
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal((5, *(shape[axis] for axis in inputs))).astype(np.float32)
    numbers[1], numbers[2] = 0, numbers[2] * 1e-5
    x = numbers.astype(jnp.dtype(dtype))
    exact = x.astype(np.float32).reshape(5, -1)
    steps = np.maximum(np.abs(exact).max(axis=1, keepdims=True) * np.float32(1 / 127), np.float32(2.0**-126))
    whole = np.rint(exact / steps).reshape(x.shape).astype(np.int64)
    for layout in layouts(shape, inputs, W8A8())[:2]:
        matrix = packed(rng.standard_normal(shape).astype(np.float32), layout, W8A8())
        values = np.asarray(restored(matrix), np.int64)
        sums = np.tensordot(whole, values, (range(1, x.ndim), inputs))
        want = sums * steps.reshape(5, *[1] * (sums.ndim - 1)).astype(np.float64) * np.asarray(matrix.scales, np.float64)
        for got in products(x, matrix, ("xla", None)):
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("shape", "inputs", "dtype"), in_turn(NAMED_SHAPES, DTYPES[:2]))
def test_rows_are_rounded_too_in_fp8(shape, inputs, dtype):
    """To the nearest number of E4M3, its ties to even, a row's numbers of the last dimension of inputs with one step."""
    rng, float8 = np.random.default_rng(0), ml_dtypes.float8_e4m3fn
    numbers = rng.standard_normal((5, *(shape[axis] for axis in inputs))).astype(np.float32)
    numbers[1], numbers[2] = 0, numbers[2] * 1e-5
    x = numbers.astype(jnp.dtype(dtype))
    exact = x.astype(np.float32)
    steps = np.maximum(np.abs(exact).max(axis=-1, keepdims=True) * np.float32(1 / 448), np.float32(2.0**-126))
    rounded = (exact / steps).astype(float8).astype(np.float64) * steps.astype(np.float64)
    for layout in layouts(shape, inputs, FP8()):
        plain = rng.standard_normal(shape).astype(np.float32)
        matrix = packed(plain, layout, FP8())
        scales = np.abs(plain).max(axis=inputs) / np.float32(448)
        values = (plain / np.expand_dims(np.asarray(matrix.scales), inputs)).astype(float8).astype(np.float64)
        np.testing.assert_allclose(matrix.scales, scales, rtol=1e-6)
        np.testing.assert_array_equal(np.asarray(restored(matrix), np.float64), values)
        weights = values * np.expand_dims(np.asarray(matrix.scales, np.float64), inputs)
        want = np.tensordot(rounded, weights, (range(1, x.ndim), inputs))
        got = np.asarray(products(x, matrix)[0])
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        row = x.copy()
        row[np.arange(5) != 3] = np.nan
        np.testing.assert_array_equal(np.asarray(products(row, matrix)[0])[3], got[3], "whatever other rows are")


def test_sums_of_devices_are_rounded_before_they_are_added():
    """As on GPUs: each part's sum, times its step and the outputs' scales, in 16 bits."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((3, 2, 32)), jnp.bfloat16)
    matrix = pack(jnp.asarray(rng.standard_normal((2, 32, 5)), jnp.float32), OutputsFirst((0, 1)), FP8())
    parts = [
        matmul(x[:, part], replace(matrix, values=matrix.values[:, part], layout=OutputsFirst((0,)), scales=jnp.ones(5)))
        for part in range(2)
    ]
    scales, got = np.asarray(matrix.scales), np.asarray(matmul(x, matrix, summed=jnp.dtype("bfloat16")))
    exact = np.sum(np.asarray(parts, np.float64), axis=0) * scales
    each = np.abs(np.asarray(parts, np.float64) * scales).max()
    assert 0 < np.abs(got - exact).max() < 5 * 2.0**-9 * each, "two parts, each rounded twice, and their sum"
    np.testing.assert_array_equal(np.asarray(jnp.asarray(got).astype(jnp.bfloat16), np.float32), got)


def test_more_inputs_than_an_int32_sums_stay_as_they_are():
    assert W8A8().fitted((1 << 16, 3), (0,)) == W8A8()
    assert W8A8().fitted((3, 1 << 15, 3), (0, 1)) is None


@DIVIDED
@pytest.mark.parametrize(
    ("shape", "inputs", "axes"),
    [((8, 4, 6), (0,), (None, "ffn", None)), ((4, 6, 8), (0, 1), ("ffn", None, None)), ((8, 12), (0,), (None, "vocab"))],
)
@pytest.mark.parametrize("arranged", [Layout, OutputsFirst])
def test_plain_ones_are_divided_over_devices(scheme, arranged, shape, inputs, axes):
    """By the compiler, and under shard_map, where a device sees its own part."""
    mesh, rng = make_mesh(4), np.random.default_rng(0)
    matrix = packed(rng.standard_normal(shape).astype(np.float32), arranged(inputs), scheme)
    x = rng.integers(-4, 5, (5, *(shape[axis] for axis in inputs))).astype(np.float32)
    want = np.asarray(products(x, matrix)[0])
    specs = matrix.specs(partition_spec(axes))
    divided = jax.tree.map(lambda part, spec: jax.device_put(part, NamedSharding(mesh, spec)), matrix, specs)
    assert divided.values.sharding.shard_shape(divided.values.shape) != divided.values.shape
    assert divided.shape == shape
    np.testing.assert_allclose(jax.jit(matmul)(x, divided), want, rtol=0, atol=1e-4)
    if inputs == (0,):
        columns = PartitionSpec(None, *partition_spec(axes)[1:])
        mapped = jax.shard_map(matmul, mesh=mesh, in_specs=(PartitionSpec(), specs), out_specs=columns)
        np.testing.assert_allclose(jax.jit(mapped)(x, divided), want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("numbers", list(NUMBERS))
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("group", [8, 32, 512])
def test_codes_of_four_bits_stand_for_number_less_zero_times_scale(numbers, zeros, group):
    """However few rows there are, and in a last panel that is narrower; groups longer than what is added up at a time, too."""
    rng = np.random.default_rng(group)
    inputs, outputs = max(group, 64), 70
    codes = rng.integers(0, 16, (inputs, outputs)).astype(np.uint8)
    factors = [rng.standard_normal((inputs // group, outputs)).astype(np.float32) for _ in range(1 + zeros)]
    each = [np.repeat(part, group, axis=0).astype(np.float64) for part in (*factors, *([] if zeros else [0 * factors[0]]))]
    want = (np.array(NUMBERS[numbers])[codes] - each[1]) * each[0]
    layout, scheme = CodePanels((0,), codes.shape), FourBit(numbers, group, zeros)
    scales = tuple(jnp.asarray(part) for part in factors)
    matrix = Matrix(jax.jit(layout.arrange)(codes), scales, layout, scheme)
    np.testing.assert_array_equal(restored(matrix), codes)
    np.testing.assert_allclose(read(matrix)[0], want, rtol=0, atol=1e-5)
    batches = [rng.integers(-4, 5, (rows, inputs)).astype(np.float32) for rows in (1, 4, 5, 13)]
    multiplied = jax.jit(lambda batches, matrix: [matmul(x, matrix) for x in batches])(batches, matrix)
    for x, got in zip(batches, multiplied, strict=True):
        np.testing.assert_allclose(got, x @ want, rtol=0, atol=2e-3)


@pytest.mark.parametrize(("inputs", "outputs", "group"), [(37, 70, None), (256, 130, None), (64, 64, 4), (384, 150, 128)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_number_of_e4m3_is_multiplied_as_it_is(inputs, outputs, group, dtype):
    """Those without a leading 1 too, by every instruction set; and a row has the same bits however many there are."""
    rng = np.random.default_rng(0)
    every = np.arange(256, dtype=np.uint8)
    codes = rng.permutation(np.resize(every[every % 128 != 127], inputs * outputs)).reshape(inputs, outputs)
    numbers = codes.view(ml_dtypes.float8_e4m3fn)
    layout, scheme = Panels((0,), codes.shape), Float8Weight(group)
    scales = rng.standard_normal((inputs // (group or inputs), outputs)).astype(np.float32)
    want = numbers.astype(np.float64) * np.repeat(scales.astype(np.float64), group or inputs, axis=0)
    matrix = Matrix(jax.jit(layout.arrange)(numbers), jnp.asarray(scales), layout, scheme)
    np.testing.assert_array_equal(read(matrix)[0], want.astype(np.float32))
    x = rng.integers(-4, 5, (131, inputs)).astype(jnp.dtype(dtype))
    exact = x.astype(np.float64) @ want
    largest = np.abs(exact).max()
    np.testing.assert_allclose(products(x, matrix, ("xla",))[0], exact, rtol=0, atol=1e-6 * largest)
    if native.missing() is not None:
        return
    for name in ("best", "avx512", "avx2", "portable"):
        batches = [x[:rows] for rows in (131, 1, 5, 6, 129)]
        multiply = jax.jit(lambda batches, matrix, name=name: [cpu_native.matmul(x, matrix, name) for x in batches])
        got, *parts = (np.asarray(each) for each in multiply(batches, matrix))
        np.testing.assert_allclose(got, exact, rtol=0, atol=1e-6 * largest, err_msg=name)
        for part in parts:
            np.testing.assert_array_equal(part, got[: len(part)])


def test_groups_that_are_none_are_not_held():
    assert Float8Weight(128).fitted((256, 3), (0,)) == Float8Weight(128)
    assert Float8Weight(128).fitted((192, 3), (0,)) is None
    assert Float8Weight(6).fitted((12, 3), (0,)) is None


def test_four_bits_of_another_kind_are_not_rounded_to():
    for scheme in (FourBit("fp4"), FourBit(zeros=True)):
        with pytest.raises(ValueError, match="others are read as they are stored"):
            scheme.quantize(np.ones((128, 2), np.float32), (0,), np)


def test_padding_is_skipped_by_native_layouts_alone():
    parameter = jnp.ones((4, 4), jnp.float32)
    tree = {"bare": parameter, "plain": pack(parameter, Layout((0,))), "panels": pack(parameter, Panels((0,), (4, 4)))}
    told = counted(tree, jnp.int32(2))
    assert [name for name, leaf in told.items() if getattr(leaf, "used_rows", None) is not None] == ["panels"]
    assert [name for name, leaf in tree.items() if skips_padding(leaf)] == ["panels"]


def test_an_array_is_a_matrix_of_its_own_numbers():
    array = jnp.ones((4, 3), jnp.float32)
    assert as_matrix(array).plain() is array
    held = pack(array, Panels((0,), (4, 3)))
    assert as_matrix(held) is held


@pytest.mark.parametrize(
    ("x", "matrix", "error", "message"),
    [
        ((3, 5), jnp.ones((4, 2)), ValueError, r"the matrix has 4 inputs, and x \[3, 5\] has 5"),
        ((0, 4), jnp.ones((4, 2)), ValueError, r"no axis may be empty, got x \[0, 4\] and 2 outputs"),
        (
            (3, 4),
            pack(jnp.ones((2, 4, 2), jnp.float32), Panels((0,), (4, 2)), SCHEMES["int8"], stacked=True),
            ValueError,
            "the matrix is a stack of them, which grouped_matmul multiplies by",
        ),
        ((3, 4), jnp.ones((4, 2), jnp.bfloat16), TypeError, "the matrix must be float32 like x, got bfloat16"),
    ],
)
def test_what_does_not_fit_is_refused(x, matrix, error, message):
    with pytest.raises(error, match=message):
        matmul(jnp.zeros(x, jnp.float32), matrix)
