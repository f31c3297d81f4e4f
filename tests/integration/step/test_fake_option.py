"""An option that nobody knows but this test goes from a request to the jitted step by its declaration alone."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.cache.kv_cache import KVCache
from jaxserve.clock import VirtualClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.executor.local import LocalExecutor
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.options import ExecutorOptions
from jaxserve.executor.programs import make_programs
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config
from jaxserve.sampling.options import STANDARD, TRUNCATION, RowOption, RowOptions
from jaxserve.sampling.truncation import Rule
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.weights.load import load_params
from sharding.mesh import make_mesh
from tests.support.bench import request
from tests.support.engine import silent
from tests.support.tiny_checkpoint import write_tiny_checkpoint

SEED = 7  # of the bench's requests
ONLY = RowOption("only", np.int32, -1, lambda row: row.seed if row.params.top_k else -1, need=TRUNCATION)
OPTIONS = RowOptions((*STANDARD.options, ONLY))


def only(scores, value):
    return scores.vocabulary.tokens(scores.deficit.shape) == value[:, None]


def test_it_arrives_in_the_step_and_in_the_output(tmp_path):
    directory = write_tiny_checkpoint(tmp_path)
    config, mesh = decoder_config(read_hf_config(directory)), make_mesh(2)
    limits = ExecutorOptions(
        max_num_seqs=4,
        max_num_batched_tokens=16,
        max_model_len=32,
        num_pages=40,
        page_size=4,
        dtype="float32",
        kv_dtype="float32",
        strict=True,
        fewest_shapes=True,
    )
    lowering = Lowering(config, mesh, limits, OPTIONS, (Rule(ONLY, only),))
    params = load_params(directory, config, mesh, "float32", load_format="dummy", seed=0, progress=lambda done, total: None)
    executor = LocalExecutor(lowering, make_programs(lowering, silent), params)
    settings = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16)
    scheduler = Scheduler(settings, KVCache(40, 4, prefix_caching=False), 32, VirtualClock(), row_options=OPTIONS)
    scheduler.add([request("asks", 5, 6, temperature=1.0, top_k=1000)])
    scheduler.add([replace(request("free", 5, 6, temperature=1.0), seed=8)])
    tokens: dict[str, list[Any]] = {"asks": [], "free": []}
    while (plan := scheduler.schedule()) is not None:
        for update in scheduler.apply(plan, executor.submit(plan).result()):
            tokens[update.id].append(update.token)
    assert tokens["asks"] == [SEED] * 6
    assert len(tokens["free"]) == 6
    assert len(set(tokens["free"])) > 1, "a row that does not ask is sampled as ever"


def test_words_hold_what_was_declared():
    words = np.stack([OPTIONS.neutral, OPTIONS.neutral])
    OPTIONS.column(words, ONLY)[1] = 5
    assert OPTIONS.column(words, "only").tolist() == [-1, 5]
    assert OPTIONS.size == STANDARD.size + 1
    assert OPTIONS.flags(words, np.ones(2, np.bool_)) == [False] * len(OPTIONS.needs), "only rows that draw need it"
    OPTIONS.column(words, "temperature")[1] = 1.0
    needed = {need.name for need, flag in zip(OPTIONS.needs, OPTIONS.flags(words, np.ones(2, np.bool_)), strict=True) if flag}
    assert needed == {"random", "truncation"}
    assert OPTIONS.flags(words, np.array([True, False])) == [False] * len(OPTIONS.needs), "a row that does not sample"
    assert jnp.asarray(words).dtype == jax.numpy.int32
