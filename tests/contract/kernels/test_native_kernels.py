"""The native kernels for CPUs under the shared suites, and what is theirs alone: instruction sets, threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.add_lora import cpu_native as lora_native
from pallas_kernels.add_lora import reference as lora_reference
from pallas_kernels.gated_linear_attention import cpu_native as linear_native
from pallas_kernels.gated_linear_attention import reference as linear_reference
from pallas_kernels.grouped_matmul import cpu_native as grouped_native
from pallas_kernels.grouped_matmul import reference as grouped_reference
from pallas_kernels.kv_write import kv_write
from pallas_kernels.matmul import CodePanels, Layout, Matrix, Panels, Rows, counted, cpu_native, pack
from pallas_kernels.parity.cases import ATTENTION_CASES, GROUPED_CASES, MATMUL_CASES, GroupedCase
from pallas_kernels.parity.gate import TOLERANCE, packed_matrix, packed_weights
from pallas_kernels.parity.recurrence import DELTA, LAYER, LINEAR_CASES, LinearCase, LinearShape
from pallas_kernels.parity.states import PLACES, STEPS, Step
from pallas_kernels.quantization import SCHEMES, FourBit, Scheme
from pallas_kernels.ragged_attention import cpu_native as ragged_native
from pallas_kernels.ragged_attention import reference as ragged_reference
from pallas_kernels.ragged_paged_attention import AttentionOptions, ragged_paged_attention
from pallas_kernels.ragged_paged_attention import cpu_native as attention_native
from pallas_kernels.ragged_paged_attention import reference as attention_reference
from pallas_kernels.state_rows import StateRows

from .add_lora_suite import CASES as LORA_CASES
from .add_lora_suite import AddLoraSuite, LoraCase
from .add_lora_suite import compiled as compiled_lora
from .attention_suite import AttentionSuite
from .batches import Batch, Heads, make_batch
from .gated_linear_attention_suite import GatedLinearAttentionSuite
from .grouped_matmul_suite import GroupedMatmulSuite, compiled
from .in_turn import in_turn
from .matmul_suite import MatmulSuite
from .needs import NATIVE
from .ragged_attention_suite import CASES as RAGGED_CASES
from .ragged_attention_suite import TOLERANCE as RAGGED_TOLERANCE
from .ragged_attention_suite import RaggedAttentionSuite, RaggedCase

pytestmark = NATIVE
BFLOAT16 = jnp.dtype("bfloat16")
LAYOUTS = ("panels", "rows")
INSTRUCTION_SETS = ("avx512bf16", "avx512", "avx2", "portable")  # the suite has the best one
TURNS = ("bfloat16", "float32")  # the suites' cases begin with float32: what they have in one dtype is here in the other


def by_each(function: Callable[..., Any], *arrays: Any, names: Sequence[str] = INSTRUCTION_SETS, **given: Any) -> dict[str, Any]:
    """What a kernel makes of the arrays by each instruction set, in one program."""
    program = jax.jit(lambda *arrays: {name: function(*arrays, instruction_set=name, **given) for name in names})
    results: dict[str, Any] = jax.tree.map(np.asarray, program(*arrays))
    return results


def of_first_rows(x: np.ndarray, matrix: Matrix, counts: Iterable[int]) -> list[np.ndarray]:
    """Multiply the first `count` rows of x for each of the counts, in one program."""
    batches = [x[:count] for count in counts]
    program = jax.jit(lambda batches, matrix: [cpu_native.matmul(batch, matrix) for batch in batches])
    return [np.asarray(product) for product in program(batches, matrix)]


def held(plain: np.ndarray, layout: Layout, scheme: Scheme = SCHEMES["none"]) -> Matrix:
    """`pack` in one program."""
    matrix: Matrix = jax.jit(partial(pack, layout=layout, scheme=scheme))(plain)
    return matrix


class TestMatmul(MatmulSuite):
    implementation = "cpu_native"
    dtypes = ("float32", "bfloat16")
    layouts = LAYOUTS
    any_dtype = ("fp8_weight",)

    @pytest.mark.parametrize(
        ("dtype", "case"), [pair for pair in in_turn(MATMUL_CASES, TURNS) if pair.values[1].layout in LAYOUTS]
    )
    def test_every_instruction_set_gives_the_same(self, dtype, case):
        """What this CPU does not have is computed by the portable kernels, which are checked either way."""
        x, plain = case.arrays(dtype)
        matrix, plain = packed_matrix(case, plain)
        want = x.astype(np.float64) @ plain.astype(np.float64)
        for name, got in by_each(cpu_native.matmul, x, matrix).items():
            np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE["float32"].max_abs, err_msg=name)

    @pytest.mark.parametrize(
        ("scheme", "inputs"),
        [("none", 70), ("none", 2101), ("int8", 2100), ("w8a8", 2102), ("fp8_weight", 2101), ("int4", 2176)],
    )
    def test_a_row_does_not_depend_on_how_many_there_are(self, scheme, inputs):
        rng = np.random.default_rng(0)
        x = rng.standard_normal((40, inputs)).astype(BFLOAT16)
        plain = rng.standard_normal((inputs, 90)).astype(BFLOAT16)
        matrix = held(plain, (CodePanels if scheme == "int4" else Panels)((0,), plain.shape), SCHEMES[scheme])
        whole, *parts = of_first_rows(x, matrix, (40, *range(1, 19), 31, 32, 33, 39))
        for part in parts:
            np.testing.assert_array_equal(part, whole[: len(part)])

    @pytest.mark.parametrize("inputs", [1, 96, 1101])
    def test_a_row_by_a_table_does_not_depend_on_how_many_there_are(self, inputs):
        rng = np.random.default_rng(0)
        x = rng.standard_normal((90, inputs)).astype(BFLOAT16)
        table = rng.standard_normal((170, inputs)).astype(BFLOAT16)
        whole, *parts = of_first_rows(x, held(table, Rows((1,))), (90, 1, 2, 15, 16, 17, 33, 63, 64, 65))
        want = x.astype(np.float64) @ table.astype(np.float64).T
        np.testing.assert_allclose(whole, want, rtol=0, atol=1e-4)
        for part in parts:
            np.testing.assert_array_equal(part, whole[: len(part)])

    @pytest.mark.parametrize("group", [16, 32, 96, 288])
    def test_a_row_of_tiny_numbers_times_codes_does_not_depend_on_how_many_there_are(self, group):
        """Denormal numbers among them, which are taken for 0; groups that are a multiple of 32 and one that is none."""
        rng = np.random.default_rng(0)
        x = (rng.standard_normal((20, 3 * group)) * 2.0 ** rng.integers(-135, -115, (20, 3 * group))).astype(BFLOAT16)
        plain = rng.standard_normal((3 * group, 150)).astype(np.float32)
        matrix = held(plain, CodePanels((0,), plain.shape), FourBit(group=group))
        whole, *parts = of_first_rows(x, matrix, (20, *range(1, 20)))
        numbers = np.asarray(jax.jit(Matrix.plain)(matrix), np.float64)
        want, lost = x.astype(np.float64) @ numbers, 2.0**-126 * np.abs(numbers).sum(axis=0).max()
        np.testing.assert_allclose(whole, want, rtol=0, atol=lost + 1e-5 * np.abs(want).max())
        for part in parts:
            np.testing.assert_array_equal(part, whole[: len(part)])
        alone = jax.jit(cpu_native.matmul)
        for row in range(20):
            np.testing.assert_array_equal(np.asarray(alone(x[row : row + 1], matrix))[0], whole[row])

    @pytest.mark.parametrize(("inputs", "outputs"), [(256, 192), (133, 70), (3, 64), (2052, 128)])
    def test_whole_numbers_are_the_same_on_every_cpu(self, inputs, outputs):
        """Bit by bit, with the largest numbers that there are, -128 among the weights; unused rows are 0."""
        rng = np.random.default_rng(0)
        plain = rng.standard_normal((inputs, outputs)).astype(np.float32)
        matrix = held(plain, Panels((0,), plain.shape), SCHEMES["w8a8"])
        numbers = rng.choice(np.array([-128, -127, -1, 0, 3, 127], np.int8), (inputs, outputs), p=[0.3, 0.1, 0.1, 0.1, 0.1, 0.3])
        matrix = replace(matrix, values=jax.jit(matrix.layout.arrange)(numbers), used_rows=jnp.int32(37))
        x = np.where(rng.random((40, inputs)) < 0.7, 127, rng.integers(-127, 128, (40, inputs))).astype(np.float32)
        x[:, 0] = 127
        sums = x.astype(np.int64) @ numbers.astype(np.int64)
        want = sums * np.asarray(matrix.scales, np.float64)
        want[37:] = 0
        best = np.asarray(jax.jit(cpu_native.matmul)(x, matrix))
        np.testing.assert_allclose(best, want, rtol=1e-6)
        for name, got in by_each(cpu_native.matmul, x, matrix, names=("avx512vnni", "avx2", "portable")).items():
            np.testing.assert_array_equal(got, best, err_msg=name)

    @pytest.mark.parametrize("used", [-1, 4])
    def test_more_used_rows_than_there_are_are_refused(self, used):
        matrix = counted(pack(jnp.ones((8, 8), jnp.float32), Panels((0,), (8, 8))), jnp.int32(used))
        with pytest.raises(jax.errors.JaxRuntimeError, match="more rows are used than there are"):
            cpu_native.matmul(jnp.ones((3, 8), jnp.float32), matrix).block_until_ready()

    def test_many_products_at_once(self):
        """Large enough to be shared between threads; several programs share the threads, and all come to an end."""
        rng = np.random.default_rng(0)
        x = jnp.asarray(rng.standard_normal((4, 256)), jnp.float32)
        plain = jnp.asarray(rng.standard_normal((256, 512)), jnp.float32)
        matrix, want = pack(plain, Panels((0,), plain.shape)), np.asarray(x, np.float64) @ np.asarray(plain, np.float64)
        program = jax.jit(lambda x, matrix: [cpu_native.matmul(x * factor, matrix) for factor in range(1, 9)])
        with ThreadPoolExecutor(4) as pool:
            for products in pool.map(lambda _: program(x, matrix), range(16)):
                for factor, got in enumerate(products, start=1):
                    np.testing.assert_allclose(np.asarray(got), want * factor, rtol=0, atol=1e-3)


class TestGatedLinearAttention(GatedLinearAttentionSuite):
    implementation = "cpu_native"
    dtypes = ("float32", "bfloat16")

    @pytest.mark.parametrize("case", [case for case in LINEAR_CASES if case.step in STEPS[-2:]], ids=lambda case: case.name)
    def test_every_instruction_set_gives_the_same(self, case):
        given, options = case.arrays("float32"), case.shape.options
        real = sum(case.step.lengths)
        want, kept = linear_reference.gated_linear_attention(*given, layer=LAYER, options=options)
        results = by_each(linear_native.gated_linear_attention, *given, names=INSTRUCTION_SETS[1:], layer=LAYER, options=options)
        for name, (got, left) in results.items():
            np.testing.assert_allclose(got[:real], want[:real], rtol=2e-5, atol=2e-5, err_msg=name)
            np.testing.assert_allclose(left, kept, rtol=2e-5, atol=2e-5, err_msg=name)

    def test_a_row_in_chunks_among_others_gives_the_same_bits(self):
        """Enough of them to be shared between threads."""
        step, shape = Step("a prompt and a few", (70, 3), new=(0,)), LinearShape(2, 4, 128, 128, DELTA)
        whole = LinearCase(step.name, step, shape).arrays("bfloat16")
        call = jax.jit(partial(linear_native.gated_linear_attention, layer=LAYER, options=DELTA))
        want, left = (np.asarray(array) for array in call(*whole))
        states, parts = whole[5], []
        for first, last, place in ((0, 33, 0), (33, 34, 1), (34, 70, 1)):
            count = last - first
            words: tuple[Any, ...] = ([0, count], [0] * count, [place], [[1]], [PLACES], [0])
            alone = StateRows(*(jnp.asarray(each, jnp.int32) for each in words))
            out, states = call(*(array[first:last] for array in whole[:5]), states, alone)
            parts.append(np.asarray(out))
        np.testing.assert_array_equal(np.concatenate(parts), want[:70])
        np.testing.assert_array_equal(np.asarray(states)[LAYER, 1], left[LAYER, 1])

    def test_rows_outside_the_arrays_are_refused(self):
        *given, rows = LINEAR_CASES[0].arrays("float32")
        call: Any = partial(linear_native.gated_linear_attention, layer=LAYER, options=LINEAR_CASES[0].shape.options)
        for wrong, message in (
            (rows._replace(source=rows.source + PLACES), "source must be a place"),
            (rows._replace(query_start=rows.query_start + 99), "query_start must rise"),
        ):
            with pytest.raises(jax.errors.JaxRuntimeError, match=message):
                jax.block_until_ready(call(*given, wrong))


class TestGroupedMatmul(GroupedMatmulSuite):
    implementation = "cpu_native"
    dtypes = ("float32", "bfloat16")
    any_dtype = ("int4", "w8a8", "fp8_weight")
    words = False

    @pytest.mark.parametrize(
        ("dtype", "case"),
        in_turn(
            [
                case
                for case in GROUPED_CASES
                if case.name in ("odd widths", "width 1", "wide") or (case.scheme != "none" and not case.words)
            ],
            TURNS,
        ),
    )
    def test_every_instruction_set_gives_the_same(self, dtype, case):
        x, plain, sizes = case.arrays(dtype)
        weights = packed_weights(case, plain)
        rows = x
        if isinstance(weights, Matrix):  # the numbers that rounding left
            rows, plain = np.asarray(jax.jit(weights.scheme.rows)(x)), np.asarray(jax.jit(Matrix.plain)(weights))
        want = grouped_reference.grouped_matmul(rows, plain, sizes)
        results = by_each(grouped_native.grouped_matmul, x, weights, sizes, dtype=jnp.dtype("float32"), expected_rows=1)
        tolerance = TOLERANCE["float32"].max_abs * case.magnitude
        real = int(sizes.sum())  # rows behind them are NaN in x
        for name, got in results.items():
            np.testing.assert_allclose(got[:real], want[:real], rtol=0, atol=tolerance, err_msg=name)

    @pytest.mark.parametrize("dtype", dtypes)
    @pytest.mark.parametrize(
        ("scheme", "inputs"), [("none", 333), ("int8", 333), ("w8a8", 333), ("fp8_weight", 333), ("int4", 352)]
    )
    def test_shared_between_threads(self, scheme, inputs, dtype):
        """Groups of more outputs and inputs than a piece of work has; a row's result is the one it has alone, bit for bit."""
        rng = np.random.default_rng(0)
        x = rng.standard_normal((20, inputs)).astype(jnp.dtype(dtype))
        numbers = rng.standard_normal((6, inputs, 600)).astype(jnp.dtype(dtype))
        weights = packed_weights(GroupedCase("", (), scheme=scheme), numbers)
        plain = np.asarray(jax.jit(Matrix.plain)(weights) if isinstance(weights, Matrix) else weights, np.float64)
        rows = np.asarray(jax.jit(SCHEMES[scheme].rows)(x), np.float64)
        call = jax.jit(partial(grouped_native.grouped_matmul, dtype=jnp.dtype("float32"), expected_rows=20))
        got = np.asarray(call(x, weights, np.asarray([9, 0, 3, 1, 0, 5], np.int32)))
        parts = jax.tree.map(np.asarray, weights)
        assert (got[18:] == 0).all()
        for row, group in ((0, 0), (8, 0), (9, 2), (12, 3), (17, 5)):
            one = jax.tree.map(lambda part, group=group: part[group : group + 1], parts)
            alone = np.asarray(call(x[row : row + 1], one, np.asarray([1], np.int32)))
            np.testing.assert_array_equal(got[row], alone[0])
            np.testing.assert_allclose(got[row], rows[row] @ plain[group], rtol=0, atol=1e-3)

    @pytest.mark.parametrize("scheme", ["int8", "w8a8", "fp8_weight", "int4"])
    def test_a_group_is_multiplied_as_one_matrix_is(self, scheme):
        """Bit by bit, however many rows it has: by the same kernels."""
        rng = np.random.default_rng(0)
        x, plain = rng.standard_normal((23, 192)).astype(np.float32), rng.standard_normal((2, 192, 150)).astype(np.float32)
        weights = packed_weights(GroupedCase("", (), scheme=scheme), plain)
        assert isinstance(weights, Matrix)
        got = np.asarray(compiled(self.implementation)(x, weights, np.asarray([3, 20], np.int32)))
        for group, rows in enumerate((slice(0, 3), slice(3, 23))):
            one = held(plain[group], weights.layout, weights.scheme)
            np.testing.assert_array_equal(got[rows], np.asarray(jax.jit(cpu_native.matmul)(x[rows], one)))

    @pytest.mark.parametrize("sizes", [[3, 2], [-1, 2]])
    def test_more_rows_than_there_are_are_refused(self, sizes):
        with pytest.raises(jax.errors.JaxRuntimeError, match="group_sizes must be rows"):
            compiled(self.implementation)(
                jnp.ones((4, 8)), jnp.ones((2, 8, 8)), jnp.asarray(sizes, jnp.int32)
            ).block_until_ready()


class TestAddLora(AddLoraSuite):
    implementation = "cpu_native"
    dtypes = ("float32", "bfloat16")

    @pytest.mark.parametrize(("dtype", "case"), [pair for pair in in_turn(LORA_CASES, TURNS) if pair.values[1].name != "nobody"])
    def test_every_instruction_set_gives_the_same(self, dtype, case):
        arrays = case.arrays(dtype)
        want = lora_reference.add_lora(*arrays)
        for name, got in by_each(lora_native.add_lora, *arrays).items():
            np.testing.assert_allclose(got, want, rtol=0, atol=2e-2 if dtype == "bfloat16" else 1e-4, err_msg=name)

    @pytest.mark.parametrize("dtype", dtypes)
    def test_a_row_is_what_it_is_alone(self, dtype):
        """Bit by bit, whether pieces or columns are shared between threads, or nothing is."""
        for tokens in ((90, 70), (1,) * 12, (16,)):
            case = LoraCase("", tokens, inputs=704, outputs=(600, 90), rank=16)
            y, x, a, b, sizes = case.arrays(dtype)
            got = np.asarray(compiled_lora(self.implementation)(y, x, a, b, sizes))
            slots = np.repeat(np.arange(len(tokens)), tokens)
            for row in (0, len(x) // 2, len(x) - 1):
                own = [matrix[slots[row]][None] for matrix in (a, *b)]
                one = slice(row, row + 1)
                alone = compiled_lora(self.implementation)(y[one], x[one], own[0], own[1:], np.ones(1, np.int32))
                np.testing.assert_array_equal(got[row], np.asarray(alone)[0])

    def test_y_is_added_to_where_it_lies(self):
        """And stays what it was for others who read it."""
        y, *others = LoraCase("", (3, 4)).arrays("float32")
        kept, added = jax.jit(lambda y: (y * 2, lora_native.add_lora(y * 2, *others)))(y)
        np.testing.assert_array_equal(kept, y * 2)
        np.testing.assert_allclose(added, lora_reference.add_lora(y * 2, *others), rtol=0, atol=1e-4)

    @pytest.mark.parametrize("tokens", [[3, 2], [-1, 2]])
    def test_more_rows_than_there_are_are_refused(self, tokens):
        y, x, a, b, _ = LoraCase("", (2, 2)).arrays("float32")
        with pytest.raises(jax.errors.JaxRuntimeError, match="tokens must be rows"):
            compiled_lora(self.implementation)(y, x, a, b, np.asarray(tokens, np.int32)).block_until_ready()


class TestAttention(AttentionSuite):
    implementation = "cpu_native"
    dtypes = ("float32", "bfloat16", "float8", "int8")

    @pytest.mark.parametrize("dtype", dtypes)
    @pytest.mark.parametrize(
        "case",
        [case for case in ATTENTION_CASES if case.name in ("everything", "odd group", "latents, everything", "huge scores")],
        ids=lambda case: case.name,
    )
    def test_every_instruction_set_gives_the_same(self, case, dtype):
        batch, sinks = case.batch(dtype), case.sink_array()
        statics = {"layer": case.layer, "options": case.options}
        scaled = {"kv_scales": batch.kv_scales, "sinks": sinks, **statics}
        want = attention_reference.ragged_paged_attention(*batch.arrays(), **scaled)
        for name, got in by_each(attention_native.ragged_paged_attention, *batch.arrays(), **scaled).items():
            np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=TOLERANCE[dtype].max_abs, err_msg=name)

    def test_chunks_change_no_bit(self):
        """A token's result is the same however its row is cut, wherever blocks and ranges of keys begin."""
        batch = make_batch([(530, 1100)], tokens=530, heads=Heads(3, 1, 32))
        for window in (None, 70):
            whole = self.attend(batch, window=window)
            for cut in (1, 77, 400):
                start = np.asarray([0, cut, 530], np.int32)
                length = np.asarray([570 + cut, 1100], np.int32)
                apart = Batch(batch.q, batch.kv_pages, np.repeat(batch.page_table, 2, axis=0), start, length)
                np.testing.assert_array_equal(self.attend(apart, window=window), whole)

    def test_long_rows_cut_between_threads_change_no_bit(self):
        """One long row alone is shared between threads, among many it is one piece of work."""
        one = make_batch([(1, 1700)], tokens=1, heads=Heads(2, 1, 64))
        lengths = np.asarray([1700, *[40] * 99], np.int32)
        table, start = np.repeat(one.page_table, 100, axis=0), np.arange(101, dtype=np.int32)
        many = Batch(np.repeat(one.q, 100, axis=0), one.kv_pages, table, start, lengths)
        for window in (None, 1100):
            np.testing.assert_array_equal(self.attend(one, window=window)[0], self.attend(many, window=window)[0])
        self.compare(one, self.attend(one))

    @pytest.mark.parametrize("kv_dtype", ["float8_e4m3fn", "int8"])
    @pytest.mark.parametrize("name", [*INSTRUCTION_SETS, "best"])
    def test_every_byte_is_read_as_it_is(self, name, kv_dtype):
        """Each number of a dtype of 8 bits once as a key and once as a value, those below the smallest normal one too."""
        every = np.arange(256, dtype=np.uint8).view(jnp.dtype(kv_dtype))
        every = every[np.isfinite(every.astype(np.float32))]
        numbers = np.resize(every, (1, 2, 2, 1, 16, 16))
        q = np.full((1, 1, 16), 2.0**-4, np.float32)
        scales = np.resize(np.asarray([0.5, 1.0, 2.0**-7], jnp.bfloat16), (1, 2, 2, 1, 16))
        rows = (np.ones((1, 1), np.int32), np.asarray([0, 1], np.int32), np.asarray([16], np.int32))
        options = AttentionOptions(2.0**-6)
        want = attention_reference.ragged_paged_attention(q, numbers, *rows, layer=0, options=options, kv_scales=scales)
        call = partial(attention_native.ragged_paged_attention, layer=0, options=options, sinks=None, instruction_set=name)
        for dtype, tolerance in (("float32", 1e-6), ("bfloat16", 1e-2)):
            got = np.asarray(jax.jit(call)(q.astype(dtype), numbers, *rows, kv_scales=scales)).astype(np.float64)
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * np.abs(want).max(), err_msg=dtype)

    def test_what_points_outside_the_arrays_is_refused(self):
        batch = make_batch([(1, 20), (3, 9)])
        beyond, before = batch.page_table.copy(), batch.page_table.copy()
        beyond[1, -1], before[0, 0] = batch.kv_pages.shape[1], -1
        wrong = [
            ("page_table must name pages of the cache", {"page_table": beyond}),
            ("page_table must name pages of the cache", {"page_table": before}),
            ("query_start must go from 0", {"query_start": np.asarray([1, 1, 4], np.int32)}),
            ("query_start must go from 0", {"query_start": np.asarray([0, 1, 8], np.int32)}),
            ("query_start must not descend", {"query_start": np.asarray([0, 5, 4], np.int32)}),
            ("more queries than keys", {"kv_length": np.asarray([20, 2], np.int32)}),
            ("more keys than its pages hold", {"kv_length": np.asarray([49, 9], np.int32)}),
        ]
        assert batch.q.shape[0] == 7
        assert batch.page_table.shape == (2, 3)
        for message, changes in wrong:
            with pytest.raises(jax.errors.JaxRuntimeError, match=message):
                self.attend(replace(batch, **changes))

    def test_a_query_that_is_not_a_number_spoils_its_own_result_only(self):
        batch = make_batch([(1, 20), (3, 9), (1, 70)])
        want = self.attend(batch)
        spoiled = batch.q.copy()
        spoiled[2, 1, 5] = np.nan  # token 2, head 1
        got = self.attend(replace(batch, q=spoiled)).copy()
        assert np.isnan(got[2, 1]).all()
        got[2, 1] = want[2, 1]
        np.testing.assert_array_equal(got, want)

    def test_the_cache_is_not_copied(self):
        """Layers write and attend in turns; the donated cache stays where it is, and no instruction makes another."""

        def step(kv_pages, q, table, start, length, slots):
            for layer in range(3):
                kv_pages = kv_write(kv_pages, q[:, :2], q[:, :2], slots, layer=layer)
                q += ragged_paged_attention(
                    q,
                    kv_pages,
                    table,
                    start,
                    length,
                    layer=layer,
                    options=AttentionOptions(0.1),
                    implementation=self.implementation,
                )
            return kv_pages, q

        batch = make_batch([(1, 20), (3, 9)], layers=3, dtype="bfloat16")
        arguments = (batch.kv_pages, *batch.arrays()[:1], *batch.arrays()[2:], np.zeros(batch.q.shape[0], np.int32))
        compiled = jax.jit(step, donate_argnums=0).lower(*arguments).compile()
        memory, text = compiled.memory_analysis(), compiled.as_text()
        assert memory is not None
        assert text is not None
        assert memory.alias_size_in_bytes >= batch.kv_pages.nbytes
        cache = f"bf16[{','.join(map(str, batch.kv_pages.shape))}]"
        assert f"{cache}" in text
        assert not [line for line in text.splitlines() if f"= {cache}" in line and " copy(" in line]
        assert memory.temp_size_in_bytes < batch.kv_pages.nbytes


class TestRaggedAttention(RaggedAttentionSuite):
    implementation = "cpu_native"
    dtypes = ("float32", "bfloat16")

    @pytest.mark.parametrize(("dtype", "case"), in_turn(RAGGED_CASES, TURNS))
    def test_every_instruction_set_gives_the_same(self, dtype, case):
        arrays = case.arrays(dtype)
        want = ragged_reference.ragged_attention(*arrays, options=case.options)
        atol = max(1.0, case.magnitude) * RAGGED_TOLERANCE[dtype]
        for name, got in by_each(ragged_native.ragged_attention, *arrays, options=case.options).items():
            np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=atol, err_msg=name)

    @pytest.mark.parametrize("window", [None, 70])
    def test_a_row_depends_on_no_other(self, window):
        """Wherever it lies, and whoever shares the work: bit by bit."""
        case = RaggedCase("", (5, 700, 90), padding=2, heads=(4, 2), window=window)
        q, k, v, _ = case.arrays("float32")
        call = jax.jit(partial(ragged_native.ragged_attention, options=case.options))
        whole = np.asarray(call(q, k, v, np.array([0, 5, 705, 795], np.int32)))
        alone = np.asarray(call(q[5:705], k[5:705], v[5:705], np.array([0, 700], np.int32)))
        np.testing.assert_array_equal(whole[5:705], alone)

    @pytest.mark.parametrize("starts", [(1, 3), (0, 9), (0, 4, 2)])
    def test_rows_outside_of_the_arrays_are_refused(self, starts):
        case = RaggedCase("", (4, 2))
        q, k, v, _ = case.arrays("float32")
        with pytest.raises(jax.errors.JaxRuntimeError, match="query_start must"):
            jax.block_until_ready(ragged_native.ragged_attention(q, k, v, jnp.array(starts, jnp.int32), case.options))
