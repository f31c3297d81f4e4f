"""What the local executor does with plans beyond the plain step: copies, swaps, rows without valid logits."""

import threading
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.executor.compile_guard import LateCompileError
from jaxserve.executor.local import LocalExecutor
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.options import ExecutorOptions
from jaxserve.executor.page_moves import MOVE_WIDTH
from jaxserve.executor.programs import make_programs
from jaxserve.executor.step_programs import StepProgram
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config
from jaxserve.sampling.params import MAX_LOGPROBS
from jaxserve.weights.load import load_params
from sharding.mesh import make_mesh
from tests.support.engine import silent
from tests.support.plans import copied, make_plan, swapped_in, swapped_out
from tests.support.tiny_checkpoint import write_tiny_checkpoint

PAGE, NUM_PAGES = 4, 60
TOKENS = [10, 20, 30, 40, 50, 60]
OPTIONS = ExecutorOptions(
    max_num_seqs=2,
    max_num_batched_tokens=8,
    max_model_len=32,
    num_pages=NUM_PAGES,
    page_size=PAGE,
    dtype="float32",
    kv_dtype="float32",
    strict=True,
)
BAD = 99  # a token whose embedding is NaN


@pytest.fixture(scope="module")
def executor(tmp_path_factory):
    """Two devices, and a model in which nothing but the token BAD leads to NaN."""
    directory = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    config, mesh = decoder_config(read_hf_config(directory) | {"tie_word_embeddings": False}), make_mesh(2)
    params = load_params(directory, config, mesh, "float32", load_format="dummy", seed=0, progress=lambda done, total: None)
    table = params["embedding"]["table"]
    params["embedding"]["table"] = jax.device_put(table.at[BAD].set(jnp.nan), table.sharding)
    return made(config, params, mesh, replace(OPTIONS, fewest_shapes=True))


def made(config, params, mesh, options):
    lowering = Lowering(config, mesh, options)
    return LocalExecutor(lowering, make_programs(lowering, silent), params)


def last_row(executor, *rows, **more):
    """Tokens, and log-probabilities of the likeliest tokens, of the last row."""
    result = executor.submit(make_plan(*rows, num_logprobs=MAX_LOGPROBS, **more)).result()
    return int(result.tokens[-1, 0]), result.logprobs.top_ids[-1].tolist(), result.logprobs.top[-1]


def test_a_copied_page_is_as_good_as_a_computed_one(executor):
    computed = last_row(executor, (TOKENS, 6, [1, 2]))
    by_copy = last_row(executor, ([60], 6, [3, 4]), moves=copied((1, 3), (2, 4)))
    assert by_copy[:2] == computed[:2]
    np.testing.assert_allclose(by_copy[2], computed[2], atol=1e-5, rtol=0)
    again = last_row(executor, ([60], 6, [1, 2]))
    np.testing.assert_array_equal(again[2], by_copy[2], err_msg="the same but for the pages' numbers")


def test_copies_come_before_the_step_writes(executor):
    last_row(executor, (TOKENS, 6, [1, 2]))
    apart = last_row(executor, ([70], 6, [1, 2]), ([60], 6, [1, 5]), moves=copied((2, 5)))
    computed = last_row(executor, (TOKENS, 6, [6, 7]))
    assert apart[:2] == computed[:2]
    np.testing.assert_allclose(apart[2], computed[2], atol=1e-5, rtol=0)


def test_more_copies_than_one_call_takes(executor):
    computed = last_row(executor, (TOKENS, 6, [1, 2]))
    copies = [(1, page) for page in range(3, 3 + MOVE_WIDTH)]
    by_copy = last_row(executor, ([50, 60], 6, [20, 21]), moves=copied(*copies, (1, 20)))
    assert by_copy[:2] == computed[:2]


def test_nothing_compiles_after_ready(executor):
    compiled: list[str] = []

    def listen(event, duration_secs, **more):
        if threading.current_thread() is serving:  # variants that a step asked for are compiled behind its back
            compiled.append(event)

    serving = threading.current_thread()
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        last_row(executor, (TOKENS, 6, [1, 2]), moves=copied((3, 4), (5, 6)))
        assert [event for event in compiled if "compile" in event] == []
        jax.jit(lambda x: x + 1)(jnp.ones(3))
        assert [event for event in compiled if "compile" in event], "the listener hears compilations"
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_a_copy_stays_on_its_device_and_writes_in_place(executor):
    assert len(executor.program_texts()) == len(executor.grid.buckets) + 1
    text = executor.program_texts()[-1]
    assert "input_output_alias" in text
    assert not [line for line in text.splitlines() if " all-" in line or "collective" in line]
    whole = f"f32[2,{NUM_PAGES},2,1,{PAGE},16]"  # two layers, one of two heads on each device
    assert whole in text
    assert not [line for line in text.splitlines() if " copy(" in line and f"= {whole}" in line]


@pytest.mark.parametrize("moves", [swapped_out((1, 0)), swapped_in((0, 1))], ids=str)
def test_a_plan_that_swaps_is_refused(executor, moves):
    assert executor.capabilities().swap_slots == 0
    with pytest.raises(ValueError, match="step 3 swaps pages, and the executor has no swap space"):
        executor.submit(make_plan(([10], 1, [1]), step=3, moves=moves))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bad_row_has_no_token_and_its_neighbours_do_not_notice(executor, temperature):
    alone = executor.submit(make_plan((TOKENS, 6, [1, 2]), temperature=temperature)).result().tokens
    both = executor.submit(make_plan((TOKENS, 6, [3, 4]), ([10, BAD], 2, [5]), temperature=temperature)).result().tokens
    assert both.tolist() == [*alone.tolist(), [-1]]
    following = executor.submit(make_plan(([-1], 7, [3, 4]), ([10, -2], 2, [6]), temperature=temperature)).result().tokens
    valid = executor.submit(make_plan(([alone[0, 0]], 7, [3, 4]), ([10, 0], 2, [6]), temperature=temperature)).result().tokens
    assert following.tolist() == valid.tolist(), "a bad row leaves token 0 for the next step"
    assert (valid >= 0).all()


def test_a_page_of_nan_does_not_reach_pages_copied_beside_it(executor):
    executor.submit(make_plan(([10, BAD], 2, [5]))).result()
    computed = last_row(executor, (TOKENS, 6, [1, 2]))
    by_copy = last_row(executor, ([60], 6, [3, 4]), moves=copied((1, 3), (5, 6), (2, 4)))
    assert by_copy[:2] == computed[:2]
    np.testing.assert_allclose(by_copy[2], computed[2], atol=1e-5, rtol=0)


def test_serving_begins_with_a_few_steps_and_gives_the_same_tokens(executor, tmp_path):
    directory = write_tiny_checkpoint(tmp_path)
    config = decoder_config(read_hf_config(directory) | {"tie_word_embeddings": False})
    options = replace(OPTIONS, max_num_seqs=8, first_alone=True)
    params = load_params(
        directory, config, make_mesh(2), "float32", load_format="dummy", seed=0, progress=lambda done, total: None
    )
    early = made(config, params, make_mesh(2), options)
    before = last_row(early, (TOKENS, 6, [1, 2]))
    early.wait_compiled()
    misses = early.bucket_misses
    assert last_row(early, (TOKENS, 6, [3, 4]))[:2] == before[:2] == last_row(executor, (TOKENS, 6, [1, 2]))[:2]
    assert early.bucket_misses == misses
    assert len(early.program_texts()) == len(early.grid.buckets) + 1
    assert early.late_compiles == 0


def test_a_masked_row_chooses_of_what_its_mask_says_and_the_next_step_goes_on_from_it(executor):
    vocabulary = executor._choose.sampler.bias.shape[1]
    free = last_row(executor, (TOKENS, 6, [1, 2]))
    last_row(executor, (TOKENS[:5], 5, [3, 4]))
    last_row(executor, (TOKENS[:5], 5, [5, 6]))
    handle = executor.submit(make_plan(([60], 6, [3, 4]), ([60], 6, [5, 6]), masked=1))
    with pytest.raises(AssertionError, match="needs its masks first"):
        handle.result()
    allowed = [next(token for token in range(vocabulary) if token != free[0]), 97]
    masks = np.zeros((2, -(-vocabulary // 32)), np.uint32)
    for row, token in enumerate(allowed):
        masks[row, token // 32] = 1 << token % 32
    handle.choose(masks.view(np.int32))
    after = executor.submit(make_plan(([-1], 7, [3, 4])))
    assert handle.result().tokens[:, 0].tolist() == allowed
    assert after.result().tokens.tolist() == executor.submit(make_plan(([allowed[0]], 7, [1, 2]))).result().tokens.tolist()


def test_a_step_that_compiles_is_an_error(executor, monkeypatch):
    forward = jax.jit(lambda params, state, latest, batch, loras: (state, jnp.zeros((2, 3), jnp.int32), None))
    program = StepProgram(forward, lambda state, candidates, masks: (state, candidates))
    monkeypatch.setattr(executor._programs.steps, "program", lambda bucket, needs: program)
    with pytest.raises(LateCompileError, match=r"step 0 of 1 tokens in 1 rows compiled .*lambda.* after the engine was ready"):
        executor.submit(make_plan(([60], 6, [1, 2])))
    assert executor.late_compiles == 1
