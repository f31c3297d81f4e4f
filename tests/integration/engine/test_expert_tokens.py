"""Every token of every step visits as many experts of each layer as the model says, and the counts are there afterwards."""

from itertools import pairwise

import numpy as np

from jaxserve.engine.core import EngineCore
from jaxserve.sampling.params import SamplingParams
from tests.golden.reading import read_golden
from tests.support.engine import build, run

ACTIVE, LAYERS, COUNT, LENGTH = 2, 2, 5, 6
GREEDY = SamplingParams(temperature=0.0, max_tokens=LENGTH, ignore_eos=True)


def test_visits_of_experts():
    golden = read_golden("mixtral-window")
    built = build(golden.directory, max_num_seqs=2, max_num_batched_tokens=4, max_model_len=24)
    executor = built.core.executor
    assert executor.counts().expert_tokens == tuple((layer, (0,) * COUNT) for layer in range(LAYERS))
    seen: list[int] = []

    def look(core: EngineCore) -> None:
        seen.append(sum(executor.counts().expert_tokens[0].tokens))

    prompts = golden.prompts[:6]
    computed = sum(map(len, prompts)) + len(prompts) * (LENGTH - 1)
    run(built, prompts, GREEDY, overlap=False, each_step=look)
    assert seen[-1] == computed * ACTIVE  # nothing was in flight
    visits = np.array([counts.tokens for counts in executor.counts().expert_tokens])
    assert visits.sum(axis=1).tolist() == [computed * ACTIVE] * LAYERS
    assert (visits > 0).all()

    alone = len(seen)
    run(built, prompts, GREEDY, each_step=look)  # and here something is, most of the time
    assert seen[alone] == seen[alone - 1]  # its first step is still to be heard of
    assert all(before <= after for before, after in pairwise(seen))
    visits = np.array([counts.tokens for counts in executor.counts().expert_tokens])
    assert visits.sum(axis=1).tolist() == [2 * computed * ACTIVE] * LAYERS
