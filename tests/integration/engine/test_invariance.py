"""How the work is scheduled never changes a token: concurrency, chunks, overlap, prefix cache, preemption, neighbours."""

import itertools
from typing import Any

import numpy as np
import pytest

from jaxserve.clock import RealClock
from jaxserve.sampling.params import SamplingParams
from jaxserve.types import RequestOptions, ServiceClass
from tests.golden.reading import read_golden
from tests.support.engine import build, run
from tests.support.tiers import tiered

COUNT = 64


@pytest.fixture(scope="module")
def built():
    return build(read_golden("llama-tied").directory, max_num_seqs=64, max_num_batched_tokens=512, max_model_len=96)


@pytest.fixture(scope="module")
def prompts():
    rng = np.random.default_rng(5)
    system = rng.integers(3, 250, 40).tolist()
    fresh = [rng.integers(3, 250, int(length)).tolist() for length in rng.integers(1, 60, COUNT)]
    return [system + prompt[:16] if index % 3 == 0 else prompt for index, prompt in enumerate(fresh)]


@pytest.fixture(scope="module")
def params():
    """Half greedy, half drawn, some with penalties and truncation."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.9, "seed": 11},
        {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.5},
        {"temperature": 1.2, "seed": 12, "top_k": 20, "top_p": 0.9, "frequency_penalty": 0.4, "logit_bias": {17: 3.0}},
    ]
    return [SamplingParams(max_tokens=24, ignore_eos=True, **kinds[index % len(kinds)]) for index in range(COUNT)]


@pytest.fixture(scope="module")
def alone(built, prompts, params):
    """The tokens with every request alone in the engine, nothing shared and nothing overlapped."""
    return [
        run(built, [prompt], wanted, overlap=False, prefix_caching=False).tokens[0]
        for prompt, wanted in zip(prompts, params, strict=True)
    ]


SETTINGS = list(itertools.product([16, 64, 512], [True, False], [True, False]))
PAIRS = {(16, True, False), (16, False, True), (64, True, True), (64, False, False), (512, True, False), (512, False, True)}


@pytest.mark.parametrize(("chunk", "prefix_caching", "overlap"), tiered(SETTINGS, PAIRS))  # every two values together
def test_64_together_equal_1_alone(built, prompts, params, alone, overlap, prefix_caching, chunk):
    budget = {"max_num_batched_tokens": max(chunk, COUNT), "long_prefill_token_threshold": chunk}
    together = run(built, prompts, params, overlap=overlap, prefix_caching=prefix_caching, **budget)
    assert together.tokens == alone
    assert (together.scheduler.cache.hit_tokens > 0) == prefix_caching


@pytest.mark.parametrize("overlap", [True, False])
def test_preemption_recomputes_the_same_tokens(built, prompts, params, alone, overlap):
    small = run(built, prompts, params, overlap=overlap, num_pages=40, max_num_batched_tokens=70, growth_reserve=0.0)
    assert small.tokens == alone
    assert small.scheduler.num_preemptions > COUNT // 4


@pytest.mark.parametrize("overlap", [True, False])
def test_every_request_preempted_twice(built, prompts, params, alone, overlap):
    """Two rows; as soon as a request has a token, requests of a higher class want its row, until it was preempted twice."""
    preempted: dict[str, int] = {}
    extra = itertools.count()

    def disturb(core):
        mine = [one for one in core.scheduler.sequences.values() if one.batch]
        preempted.update((one.request.id, one.num_preemptions) for one in mine)
        if any(one.slot >= 0 and one.num_preemptions < 2 and one.num_output for one in mine):
            wanted = SamplingParams(max_tokens=2, ignore_eos=True)
            core.add(built.intake.prepare({"prompt_token_ids": [9, 8, 7]}, wanted, f"extra-{next(extra)}", RealClock().now()))

    options = RequestOptions(service_class=ServiceClass.BATCH)
    rows: dict[str, Any] = {"max_num_seqs": 2, "max_num_batched_tokens": 16}
    crowded = run(built, prompts[:12], params[:12], options=options, overlap=overlap, each_step=disturb, **rows)
    assert crowded.tokens == alone[:12]
    assert len(preempted) == 12
    assert set(preempted.values()) == {2}


def test_few_rows_at_a_time(built, prompts, params, alone):
    assert run(built, prompts, params, max_num_seqs=3, max_num_batched_tokens=16).tokens == alone


def test_the_kinds_differ(alone):
    """The comparison above would prove little if every request gave the same tokens."""
    assert len({tuple(tokens) for tokens in alone}) > COUNT // 2
