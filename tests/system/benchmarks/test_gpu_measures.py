"""What the GPU benchmark times is what it says: the programs, their arguments, the bytes and operations it counts."""

import time
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.gpu import all_reduce, autotune, engine, launches, parity, rounded, saved, serving, shapes, tiles
from benchmarks.gpu.cases import Attention, cache_shape, decode_cases, dense, paged, prefill_cases, writes
from benchmarks.gpu.pages import pool_pages, random_array, table_sets
from benchmarks.gpu.programs import compile_all
from benchmarks.gpu.sizes import FULL, REHEARSAL, Heads
from benchmarks.gpu.timing import Pace, time_calls
from jaxserve.aot.target import Target as CompileTarget
from jaxserve.errors import ConfigError
from jaxserve.executor.compile_cache import nothing_kept
from pallas_kernels.matmul import pack
from pallas_kernels.parity.operations import OPERATIONS
from pallas_kernels.quantization import SCHEMES
from pallas_kernels.registry import Target

TINY = replace(REHEARSAL, kernels=("xla",))
CPU = Target("cpu")


def test_calls_follow_each_other_and_every_batch_is_kept():
    seen = []

    def call(number, state):
        seen.append((number, int(state[0])))
        return state + 1

    figure, state = time_calls(call, jnp.zeros(1), Pace(probes=3, batch_seconds=0.0, repeats=5), operations=2)
    assert [before for _, before in seen] == list(range(2 + 3 + 5)), "each is fed by the one before"
    assert [number for number, _ in seen] == [0, 1, 0, 1, 2, 0, 0, 0, 0, 0]
    assert int(state[0]) == len(seen)
    assert len(figure["raw"]) == 5
    assert figure["low"] == min(figure["raw"])
    assert figure["seconds"] == sorted(figure["raw"])[2]
    assert (figure["calls"], figure["operations"]) == (1, 2)


@pytest.mark.parametrize(("waiting", "bound"), [(0.0, True), (10.0, False)])
def test_a_program_that_the_host_paces_is_said_to_be(monkeypatch, waiting, bound):
    now = [0.0]

    def call(number, state):
        now[0] += 1.0
        return state

    def wait(state):
        now[0] += waiting
        return state

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(jax, "block_until_ready", wait)
    figure, _ = time_calls(call, jnp.zeros(1), Pace(probes=4, batch_seconds=0.0, repeats=3), operations=2)
    assert (figure["seconds"], figure["host_seconds"]) == ((1.0 + waiting) / 2, 0.5)
    assert figure["host_bound"] is bound


@pytest.mark.parametrize("shape", [(1, 5, 2, 1, 16, 8), (7, 3), (6,), (3, 2**21, 1)])
def test_arrays_are_random_all_over(shape):
    array = np.asarray(random_array(jax.ShapeDtypeStruct(shape, jnp.float32)))
    assert array.shape == shape
    assert (array == 0).mean() < 0.01
    assert 0.5 < array.std() < 2.0


def test_bytes_and_operations_by_hand():
    heads = Heads(query=4, kv=2, dim=8)
    assert heads.token_bytes == 2 * 2 * 8 * 2
    assert Attention(3, 1, 100, 1).kv_bytes(heads) == 3 * 100 * 64
    # Queries at places 6, 7, 8 of 8 keys see 6 + 7 + 8 of them; two products of 2 operations a number.
    assert Attention(1, 3, 8, 1).flops(heads) == 4 * 4 * 8 * (6 + 7 + 8)
    assert Attention(2, 4, 4, 1).flops(heads) == 2 * 4 * 4 * 8 * (1 + 2 + 3 + 4)


def test_short_decodes_share_a_program_and_long_ones_do_not():
    cases = decode_cases(FULL, FULL.decodes + FULL.more_decodes)
    by_case = {(case.rows, case.context): case.operations for case in cases}
    assert by_case[1, 512] == FULL.operations
    assert by_case[64, 4096] == 2
    assert by_case[256, 32768] == 1


def test_tables_wander_through_the_whole_cache():
    heads, case = Heads(query=2, kv=1, dim=16), Attention(2, 1, 40, 3)
    pages = 4 * case.pages + 1
    sets = table_sets(case, pages, heads, rotated_bytes=3 * case.operations * case.kv_bytes(heads))
    assert len(sets) == 3
    tables = [np.asarray(table) for tables in sets for table in tables]
    assert {table.shape for table in tables} == {(2, 3)}
    assert all(len(np.unique(table)) == table.size for table in tables), "no two rows share a page"
    assert set(np.concatenate([table.ravel() for table in tables])) == set(range(1, pages)), "the null page is nobody's"


def test_a_case_that_memory_has_no_room_for_is_refused():
    heads, case = Heads(query=2, kv=1, dim=16), Attention(2, 1, 40, 1)
    pages = pool_pages([case], heads, 4 * heads.page_bytes)
    assert pages == 4
    assert pool_pages([case], heads, 10**9) == case.pages + 1
    with pytest.raises(ValueError, match="needs 6 pages, and memory has room for 3"):
        table_sets(case, pages, heads, 1)


def test_prefill_and_what_it_is_held_against_compute_the_same():
    (case,) = prefill_cases(replace(TINY, operations=2), ((20, 20),))
    heads, pages = TINY.heads, 5
    cache = random_array(cache_shape(heads, pages))
    table = jnp.asarray([[3, 1]], jnp.int32)
    q = random_array(jax.ShapeDtypeStruct((20, heads.query, heads.dim), jnp.bfloat16))
    program, other = paged(case, "xla", TINY, pages, CPU), dense(case, TINY)
    device = jax.devices()[0]
    ours = program.compile(device)(q, cache, jnp.array([0, 20], jnp.int32), jnp.array([20], jnp.int32), table, table)
    k, v = (cache[0, table[0], half].swapaxes(1, 2).reshape(1, -1, heads.kv, heads.dim)[:, :20] for half in (0, 1))
    with jax.numpy_dtype_promotion("standard"):  # jax.nn's own code mixes dtypes
        theirs = other.compile(device)(q[None], k, v)[0]
    np.testing.assert_allclose(np.asarray(ours, np.float32), np.asarray(theirs, np.float32), atol=3e-2)


def test_writes_are_in_place_and_where_they_should_be():
    (program,) = [each for each in writes(replace(TINY, operations=2), CPU) if each.labels["tokens"] == 2]
    compiled = program.compile(jax.devices()[0])
    cache = random_array(program.shapes[0])
    k, v = (jnp.full(shape.shape, value, shape.dtype) for shape, value in zip(program.shapes[1:3], (7, 8), strict=True))
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes == cache.nbytes
    before = np.asarray(cache, np.float32)
    after = compiled(cache, k, v, jnp.array([16, 40], jnp.int32), jnp.array([17, 90], jnp.int32))
    changed = {(page, offset) for _, page, _, _, offset, _ in np.argwhere(np.asarray(after, np.float32) != before)}
    assert changed == {(1, 0), (2, 8), (1, 1), (5, 10)}


@pytest.mark.parametrize(("scheme", "bytes_read"), [("none", 4), ("int8", 2), ("int4", 1 + 1 / 16)])
def test_an_mlp_of_rounded_matrices_multiplies_there_and_back(scheme, bytes_read):
    held = SCHEMES[scheme]
    matrices: list[Any] = [
        pack(random_array(jax.ShapeDtypeStruct(shape, jnp.bfloat16)), rounded.layout_of(shape, held), held)
        for shape in rounded.shapes_of(TINY)
    ]
    narrow, wide = TINY.rounded
    x = random_array(jax.ShapeDtypeStruct((2, narrow), jnp.bfloat16))
    y = rounded.lower(TINY, 2, scheme, "xla", jax.devices()[0]).compile()(x, matrices)
    there, back = (np.asarray(matrix.plain(), np.float64) for matrix in matrices)
    want = np.asarray(x, np.float64) @ there @ back / (narrow * wide) ** 0.5
    np.testing.assert_allclose(np.asarray(y, np.float64), want, atol=0.05)
    assert rounded.read_bytes(TINY, scheme) == bytes_read * narrow * wide


def test_uneven_rows_with_drafts_on_larger_pages_are_attended_to_in_every_kernel():
    (shape,) = TINY.shapes
    assert shapes.kv_bytes(shape) == (33 + 9) * 2 * 64 * 2
    assert shapes.pages(shape) == 5 + 2
    one, other = shapes.tables(shape, 2)
    used = np.concatenate([np.asarray(table)[row, :count] for table in (one, other) for row, count in enumerate((5, 2))])
    assert sorted(used) == list(range(1, 15)), "each page once, and never the null page"
    assert not np.asarray(one)[1, 2:].any()
    figures = [task.labels | task.measure() for task in shapes.tasks(TINY)]
    assert [figure["implementation"] for figure in figures] == list(TINY.kernels)
    assert all(figure["seconds"] > 0 and figure["kv_bytes"] == shapes.kv_bytes(shape) for figure in figures)


@pytest.mark.parametrize("way", all_reduce.WAYS)
def test_all_reduces_follow_each_other_over_all_devices(way):
    message = all_reduce.Message(64, way, tuple(jax.devices()[:2]))
    x = np.random.default_rng(0).standard_normal((2, 32)).astype(jnp.bfloat16)
    want = x.astype(np.float32)
    for _ in range(all_reduce.CHAIN):
        want = 0.25 * want.sum(axis=0) + 0.5 * x.astype(np.float32)
    got = message.compile()(jax.device_put(x, message.sharding))
    np.testing.assert_allclose(np.asarray(got, np.float32), want, atol=0.05)


def test_what_cannot_be_compiled_fails_alone():
    good, bad = paged(Attention(1, 1, 16, 1), "xla", TINY, 3, CPU), paged(Attention(1, 1, 16, 1), "mosaic_gpu", TINY, 3, CPU)
    futures = compile_all([bad, good], jax.devices()[0])
    assert "compute capability" in str(futures[0].exception())
    assert futures[1].exception() is None


def test_parity_groups_name_the_worst_case(monkeypatch):
    attention = tuple(operation for operation in OPERATIONS if operation.name == "ragged_paged_attention")
    monkeypatch.setattr(parity, "OPERATIONS", attention)
    (task,) = [
        task
        for task in parity.xla_tasks(replace(TINY, parity_interpret=False, parity_cases=2))
        if task.labels == {"operation": "ragged_paged_attention", "implementation": "xla", "dtype": "bfloat16"}
    ]
    figure = task.measure()
    assert (figure["cases"], figure["verdicts"], figure["wrong"]) == (2, {"pass": 2}, [])
    assert 0 < figure["max_abs"] < 1e-2


def test_every_tile_size_makes_a_kernel_of_its_own():
    try:
        device = CompileTarget.parse("h100").devices()[0]
    except ConfigError as error:
        pytest.skip(f"NOT CHECKED: {error}")
    case = decode_cases(FULL, ((4, 8192),))[0]
    changes = [{}, {"least_blocks": 8}]
    texts = {tiles.lower(tiles.Variant(replace(case, operations=1), change), FULL, 4097, device).as_text() for change in changes}
    assert len(texts) == 2
    fields = {field for variant in tiles.variants(FULL) for field in variant.change}
    assert fields == set(FULL.tiles)


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    """Of the engine's section by what was measured, and of the section after it, which starts from saved programs."""
    sizes = replace(TINY, scratch=tmp_path_factory.mktemp("scratch"))
    with nothing_kept():
        found = {task.labels["what"]: task.labels | task.measure() for task in serving.tasks(sizes)}
        return found, {task.labels["what"]: task.labels | task.measure() for task in saved.tasks(sizes)}


def test_the_engine_decodes_all_rows_together(figures):
    sizes, decode = TINY.engine, figures[0]["decode"]
    decoder = sizes.decoder()
    assert decode["rows"] == max(sizes.rows)
    assert decode["bucket_misses"] == 0
    assert len(decode["raw"]) == sizes.steps
    assert sizes.context < decode["kv_tokens"] / decode["rows"] < sizes.context + engine.output_tokens(sizes, decode["rows"])
    assert decode["kv_bytes"] == decode["kv_tokens"] * decoder.num_layers * 2 * decoder.num_kv_heads * decoder.head_dim * 2
    embedding = decoder.vocab_size * decoder.hidden_size
    assert decode["weight_bytes"] == 2 * (decoder.num_parameters - embedding)


def test_the_engine_tells_start_and_first_token(figures):
    assert figures[0]["start"]["steps"] == ["4x4", "64x4"]
    assert len(figures[0]["first token"]["raw"]) == TINY.engine.prompts - 1


def test_prompts_come_between_decode_steps(figures):
    rounds = figures[0]["alternating"]
    assert (rounds["rows"], rounds["prompt"]) == (3, 61)
    assert len(rounds["raw"]) == TINY.engine.steps // 2
    assert rounds["device"]["seconds"] > 0


def test_another_start_takes_the_saved_programs_and_says_the_same(figures):
    before, after = figures
    assert after["start"]["loaded"] == before["save"]["programs"]
    assert after["start"]["compiled"] == []
    assert (after["tokens"]["sequences"], after["tokens"]["same"], after["tokens"]["tokens"]) == (4, 4, 4 * saved.OUTPUT)
    (task,) = saved.tasks(TINY)
    assert "has saved no programs" in task.measure()["skipped"]


def test_what_measuring_kernels_costs_is_told_of_the_decode_step_alone(tmp_path):
    sizes = replace(TINY, scratch=tmp_path)
    (skipped,) = autotune.taken_tasks(sizes)
    assert "no results" in skipped.measure()["skipped"]
    plain, measured = autotune.tasks(sizes)
    assert measured.labels["layers"] == TINY.tuned_layers
    assert plain.measure().keys() == {"seconds", "low", "high", "raw", "host_seconds", "compile_seconds", "files", "files_before"}
    assert (tmp_path / f"autotune-{TINY.tuned_layers}").is_dir()


def test_a_step_for_a_gpu_is_two_graphs():
    try:
        device = CompileTarget.parse("h100").devices()[0]
    except ConfigError as error:
        pytest.skip(f"NOT CHECKED: {error}")
    # With a real vocabulary: what is fewer than five kernels, XLA launches singly.
    sizes = replace(TINY.engine, changes={**TINY.engine.changes, "vocab_size": 128256, "num_layers": 1})
    with nothing_kept():
        figure = launches.count(engine.lowering(sizes, sizes.decoder(), [device]), max(sizes.rows))
    assert (figure["programs"], figure["command_buffers"], figure["single"]) == (2, 2, 0)
    assert figure["kernels"] > 10


@pytest.mark.parametrize(("sizes", "rows"), [(FULL.engine, 64), (FULL.more_engine, 256)])
def test_the_real_engine_fits_an_h100(sizes, rows):
    decoder = sizes.decoder()
    options = engine.executor_options(sizes, decoder)
    cache = options.num_pages * options.page_size * decoder.num_layers * 2 * decoder.num_kv_heads * decoder.head_dim * 2
    assert 2 * decoder.num_parameters + cache < 0.75 * 80e9, "the rest is workspace"
    assert (
        options.max_num_seqs * (sizes.context + engine.output_tokens(sizes, rows)) <= (options.num_pages - 1) * options.page_size
    )
