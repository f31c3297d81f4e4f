"""A start: weights load while programs compile, and the report says what the devices hold."""

import threading

import jax
import pytest

from jaxserve.clock import RealClock
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.build import build_engine
from jaxserve.errors import CheckpointError
from tests.support.tiny_checkpoint import write_tiny_checkpoint

SMALL = {"max_num_seqs": 2, "max_num_batched_tokens": 2, "max_model_len": 32, "page_size": 8, "before_ready": "fewest"}


def build(directory, progress, **settings):
    config = EngineConfig.from_settings({"model": str(directory), **SMALL, **settings})
    return build_engine(config, strict_length=True, clock=RealClock(), progress=progress)


def test_weights_load_beside_compilation_and_the_report_counts_them(tmp_path):
    threads: dict[str, set[threading.Thread]] = {}

    def progress(what, done, total):
        threads.setdefault(what, set()).add(threading.current_thread())

    built = build(write_tiny_checkpoint(tmp_path / "tiny"), progress, load_format="dummy", tensor_parallel_size=2)
    assert threads.keys() == {"loading weights, MB", "compiling"}
    assert threads["loading weights, MB"] == {threading.current_thread()}
    assert threads["compiling"].isdisjoint(threads["loading weights, MB"])
    memory = built.report.memory
    params = jax.tree.leaves(built.core.executor.weights.tree)
    assert memory.weights == sum(array.addressable_shards[1].data.nbytes for array in params)
    assert memory.kv_cache == built.core.executor._forward.cache.stored.addressable_shards[1].data.nbytes
    start = built.report.start
    assert min(start.files, start.weights, start.programs, start.rest) > 0


def test_weights_that_are_missing_end_the_compilation(tmp_path):
    told = []
    with pytest.raises(CheckpointError, match=r"has neither model.safetensors"):
        build(write_tiny_checkpoint(tmp_path / "tiny"), lambda *line: told.append(line))
    assert told == []
