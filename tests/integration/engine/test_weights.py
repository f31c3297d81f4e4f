"""An engine from a verified Orbax checkpoint, whose weights are watched; and one whose tokenizer is not the weights' own."""

import shutil

import jax
import numpy as np
import pytest

from jaxserve.clock import RealClock
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.build import build_engine
from jaxserve.errors import CheckpointError, EngineDeadError
from jaxserve.sampling.params import SamplingParams
from jaxserve.weights.conversion import Source, convert
from tests.golden.reading import read_golden
from tests.support.engine import run, silent

NAME = "llama-linear"
LENGTH = 24
GREEDY = SamplingParams(temperature=0.0, max_tokens=LENGTH, ignore_eos=True)
SMALL = {"max_num_seqs": 4, "before_ready": "fewest", "max_num_batched_tokens": 16, "max_model_len": 128}


def build(directory, **settings):
    config = EngineConfig.from_settings({"model": str(directory), "dtype": "float32", "page_size": 8, **SMALL, **settings})
    return build_engine(config, strict_length=True, clock=RealClock(), progress=silent)


@pytest.fixture(scope="module")
def golden():
    return read_golden(NAME)


@pytest.fixture(scope="module")
def orbax(golden, tmp_path_factory):
    """A checkpoint that transformers saved, as Orbax."""
    directory = tmp_path_factory.mktemp("orbax") / "model"
    convert(Source(path=golden.directory), directory, None, lambda done, total: None)
    return directory


def test_eight_devices_give_transformers_tokens_from_an_orbax_checkpoint_until_they_lose_a_bit(golden, orbax):
    built = build(orbax, tensor_parallel_size=8, verify_weights=True, recheck_weights_minutes=1000.0)
    tokens = run(built, golden.prompts[:6], GREEDY).tokens
    assert tokens == [expected[:LENGTH] for expected in golden.greedy[:6]]

    guard = built.core.executor.weight_guard
    for _ in guard._blocks:
        guard.check_next()
    run(built, golden.prompts[:1], GREEDY)
    block = guard._blocks[-1]
    lost = np.array(block.data)
    lost.reshape(-1).view(np.uint32)[0] ^= 1
    guard._round = [type(block)(block.place, block.device, jax.device_put(lost, block.data.sharding))]
    guard.check_next()
    with pytest.raises(EngineDeadError, match="are not what was loaded: its memory may be faulty"):
        run(built, golden.prompts[:1], GREEDY)


def test_there_is_something_to_verify_against_or_nothing_starts(golden):
    with pytest.raises(CheckpointError, match=r"llama-linear has no jaxserve-manifest\.json to verify weights against"):
        build(golden.directory, verify_weights=True, load_format="orbax")


def test_another_tokenizer_is_refused_before_weights_are_read(orbax, tmp_path):
    directory = shutil.copytree(orbax, tmp_path / "model")
    shutil.rmtree(directory / "orbax")
    tokenizer = (directory / "tokenizer.json").read_text()
    (directory / "tokenizer.json").write_text(tokenizer + " ")
    with pytest.raises(CheckpointError, match=r"the tokenizer at .*model \(.*is not the one that .*manifest\.json names"):
        build(directory)
