"""A task that nobody knows but this test goes from a request through a jitted reader to its output by its declarations alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.cache.kv_cache import KVCache
from jaxserve.clock import VirtualClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.errors import InvalidRequestError
from jaxserve.executor.local import LocalExecutor
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.options import ExecutorOptions
from jaxserve.executor.programs import make_programs
from jaxserve.executor.readers import LOGPROBS_READER, Reader
from jaxserve.models.binding import bind
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.dense_attention import dense_attend
from jaxserve.models.registry import decoder_config
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.step.plan import Reading
from jaxserve.step.tasks import TASKS, Task
from jaxserve.types import FinishReason
from jaxserve.weights.load import load_params
from sharding.mesh import make_mesh
from tests.support.bench import request
from tests.support.engine import silent
from tests.support.tiny_checkpoint import write_tiny_checkpoint


def scaled(config, mesh):
    """The hidden state, times the token's number."""

    def read(decoder, hidden, values):
        numbers = hidden.astype(jnp.float32) * values.astype(jnp.float32)[:, None]
        return jax.lax.bitcast_convert_type(numbers, jnp.int32)

    return read


def vectors(words, config):
    return Reading(vectors=words.view(np.float32))


SCALED = Reader("scaled", lambda config: config.hidden_size, scaled, vectors)
PROBE = Task("probe", generates=False, reader="scaled", reads=lambda prompt, params: (2, range(len(prompt))))


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    directory = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    config, mesh = decoder_config(read_hf_config(directory)), make_mesh(2)
    sizes: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 8, "max_model_len": 32, "num_pages": 40, "page_size": 4}
    limits = ExecutorOptions(**sizes, dtype="float32", kv_dtype="float32", strict=True, fewest_shapes=True)
    lowering = Lowering(config, mesh, limits, readers=(LOGPROBS_READER, SCALED))
    params = load_params(directory, config, mesh, "float32", load_format="dummy", seed=0, progress=lambda done, total: None)
    return LocalExecutor(lowering, make_programs(lowering, silent), params), config, params


def test_it_arrives_in_the_step_and_in_the_output(engine):
    """In two chunks, beside a request that is scored and one that generates."""
    executor, config, params = engine
    settings = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=8)
    scheduler = Scheduler(settings, KVCache(40, 4, prefix_caching=False), 32, VirtualClock(), tasks={**TASKS, PROBE.name: PROBE})
    scheduler.add([request("probed", range(20, 31), task="probe", max_tokens=0)])
    scheduler.add([request("scored", range(5), task="score", max_tokens=0, prompt_logprobs=0)])
    scheduler.add([request("free", 5, 6)])
    updates: dict[str, list[Any]] = {"probed": [], "scored": [], "free": []}
    while (plan := scheduler.schedule()) is not None:
        for update in scheduler.apply(plan, executor.submit(plan).result()):
            updates[update.id].append(update)
        scheduler.check()
    assert [update.token is None for update in updates["free"]] == [False] * 6
    assert [len(update.prompt_logprobs.rows.rank) for update in updates["scored"]] == [4]
    assert updates["scored"][-1].finish_reason is FinishReason.LENGTH
    assert [update.finish_reason for update in updates["probed"]] == [None, FinishReason.LENGTH]
    assert all(update.token is None and update.prompt_logprobs is None for update in updates["probed"])
    got = np.concatenate([update.vectors.rows for update in updates["probed"]])
    run = jax.jit(lambda params: bind(config, params).hidden(jnp.arange(20, 31), jnp.arange(11), dense_attend))
    hidden = run(params)
    np.testing.assert_allclose(got, np.asarray(hidden)[2:] * np.arange(2, 11)[:, None], rtol=2e-4, atol=2e-4)


def test_a_task_that_is_not_known_is_refused():
    scheduler = Scheduler(SchedulerConfig(), KVCache(40, 4, prefix_caching=False), 32, VirtualClock())
    with pytest.raises(InvalidRequestError, match="there is no task 'probe'"):
        scheduler.add([request("probed", 5, task="probe")])
