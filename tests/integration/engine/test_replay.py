"""The bundled model's steps are recorded, dumped as in a crash, and run again on an executor that never saw them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxserve.clock import RealClock
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.build import build_engine
from jaxserve.record.dump import read_dump, write_dump
from jaxserve.sampling.params import SamplingParams
from jaxserve.simulate import main
from tests.support.engine import silent

KINDS = (
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 11, "n": 2},
    {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"temperature": 1.2, "seed": 12, "top_k": 20, "frequency_penalty": 0.4, "logit_bias": {17: 3.0}},
)


@pytest.fixture(scope="module", params=[pytest.param(0.0, marks=pytest.mark.extended), 0.01], ids=["recomputed", "swapped"])
def dump(request, tmp_path_factory):
    """The crash dump of an engine with few pages, whose ring began in mid-stream."""
    settings = {"model": "pico", "dtype": "float32", "max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 96}
    settings |= {"page_size": 8, "num_pages": 40, "growth_reserve": 0.0, "swap_space": request.param, "before_ready": "fewest"}
    folder = tmp_path_factory.mktemp("dumps")
    config = EngineConfig.from_settings(settings | {"record_steps": 20, "dump_dir": str(folder)})
    built = build_engine(config, strict_length=True, clock=RealClock(), progress=silent)
    core = built.core
    if request.param:
        swap = core.scheduler._preempter._swap
        assert swap is not None
        swap._page_seconds = 0.0  # always cheaper
    rng = np.random.default_rng(5)
    system = rng.integers(3, 250, 20).tolist()
    for index in range(16):
        prompt = system + rng.integers(3, 250, int(rng.integers(1, 20))).tolist()
        params = SamplingParams(max_tokens=40, ignore_eos=True, **KINDS[index % len(KINDS)])
        core.add(built.intake.prepare({"prompt_token_ids": prompt}, params, str(index), built.clock.now()))
    for _ in range(70):
        core.step()
    assert core.scheduler.num_preemptions > 0
    assert (core.executor.counts().swapped_in_pages > 0) == bool(request.param)
    executor: Any = core.executor
    executor.submit = broken
    with pytest.raises(RuntimeError, match="pulled the plug"):
        core.step()
    (path,) = folder.iterdir()
    return path


def broken(plan):
    raise RuntimeError("pulled the plug")


def test_the_model_gives_the_recorded_tokens(dump, capsys):
    recording = read_dump(dump)
    assert len(recording.steps) == 20
    assert recording.steps[-1].plan.step == 70
    assert int((recording.steps[0].plan.kv_length - np.diff(recording.steps[0].plan.query_start)).max()) > 16
    sampled = sum(int(step.plan.samples.sum()) for step in recording.steps if step.result is not None)
    assert main(["pico", "--replay", str(dump), "--replay-on", "model"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"equal: all {sampled} tokens are those recorded"


@pytest.mark.parametrize("dump", [0.01], indirect=True, ids=["swapped"])
def test_a_token_that_is_not_the_models_is_told(dump, tmp_path, capsys):
    recording = read_dump(dump)
    steps = list(recording.steps)
    result = steps[7].result
    assert result is not None
    row = int(np.flatnonzero(steps[7].plan.samples)[0])
    tokens = result.tokens.copy()
    tokens[row] ^= 1
    (token,) = tokens[row]
    steps[7] = replace(steps[7], result=replace(result, tokens=tokens))
    write_dump(tmp_path / "tampered", replace(recording, steps=tuple(steps)))
    assert main(["pico", "--replay", str(tmp_path / "tampered"), "--replay-on", "model"]) == 1
    plan = steps[7].plan
    place = f"first in step {plan.step} of {plan.ids[row]} at position {plan.kv_length[row]}"
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert verdict.startswith("different: 1 of")
    assert verdict.endswith(f"{place}: recorded {token}, replayed {token ^ 1}")
