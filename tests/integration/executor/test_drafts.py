"""Rows of several tokens on the local executor: the tokens are those that it chooses one at a time."""

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from jaxserve.cache.kv_cache import KVCache
from jaxserve.clock import VirtualClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.executor.local import LocalExecutor
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.options import ExecutorOptions
from jaxserve.executor.programs import make_programs
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.speculation.drafter import Guess
from jaxserve.speculation.speculation import Speculation
from jaxserve.weights.load import load_params
from sharding.mesh import make_mesh
from tests.support.bench import request
from tests.support.engine import silent
from tests.support.hash_executor import masked_rows
from tests.support.plans import make_plan
from tests.support.scripted_grammars import ScriptedGrammars, params_of
from tests.support.tiers import tiered
from tests.support.tiny_checkpoint import write_tiny_checkpoint

DRAFTS, LENGTH = 3, 40
SIZES: dict[str, Any] = {"max_num_seqs": 3, "max_num_batched_tokens": 12, "max_model_len": 64, "num_pages": 60, "page_size": 4}


@pytest.fixture(scope="module")
def executor(tmp_path_factory):
    directory = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    config, mesh = decoder_config(read_hf_config(directory)), make_mesh(2)
    options = ExecutorOptions(**SIZES, dtype="float32", kv_dtype="float32", max_drafts=DRAFTS, fewest_shapes=True, strict=True)
    params = load_params(directory, config, mesh, "float32", load_format="dummy", seed=0, progress=lambda done, total: None)
    lowering = Lowering(config, mesh, options)
    return LocalExecutor(lowering, make_programs(lowering, silent), params)


def run(executor, requests, drafter=None, *, ahead=False):
    """Tokens and log-probabilities by sequence, and how many steps they took; `ahead` plans one step before the last is known."""
    settings = SchedulerConfig(max_num_seqs=3, max_num_batched_tokens=12, itl_target_ms=0.0)
    cache = KVCache(SIZES["num_pages"], SIZES["page_size"], prefix_caching=False)
    clock = VirtualClock()
    guessing = None if drafter is None else Speculation(drafter, DRAFTS, clock, max_rows=3, max_tokens=12)
    grammars = ScriptedGrammars()
    scheduler = Scheduler(settings, cache, SIZES["max_model_len"], clock, speculation=guessing, masker=grammars)
    for one in requests:
        form = one.params.structured_outputs
        scheduler.add([one], None if form is None else grammars.constraints(form))
    tokens: dict[str, Any] = {}
    ranks: dict[str, Any] = {}
    flying: list[Any] = []
    steps = 0

    def collect():
        for plan, handle in flying:
            for update in scheduler.apply(plan, handle.result()):
                assert update.error is None
                if update.token is not None:
                    tokens.setdefault(update.id, []).append(update.token)
                if update.logprobs is not None:
                    ranks.setdefault(update.id, []).append(update.logprobs.first(1)[1])
        flying.clear()

    while scheduler.has_work or flying:
        plan = scheduler.schedule()
        if plan is not None:
            handle = executor.submit(plan)
            steps += 1
            if masked_rows(plan).any():
                collect()
                handle.choose(scheduler.masks(plan))
            flying.append((plan, handle))
        if plan is None or not ahead or not plan.num_drafts.any():  # a step with drafts is followed before it is known
            collect()
        scheduler.check()
    return tokens, ranks, steps


class Foreknowing:
    """Proposes what was chosen before, wrong at every `wrong`th place of a sequence."""

    def __init__(self, told, wrong):
        self.texts = told
        self.wrong = wrong

    def begin(self, tenant, num_prompt):
        return self

    def end(self, tokens):
        pass

    def propose(self, tokens, most):
        (text,) = [text for text in self.texts if text[: len(tokens)] == list(tokens)]
        guesses = text[len(tokens) : len(tokens) + most]
        return Guess(
            tuple(token + 1 if (len(tokens) + place) % self.wrong == 0 else token for place, token in enumerate(guesses))
        )


REQUESTS = [
    request("greedy", [3, 1, 4, 1, 5], LENGTH),
    request("drawn", [9, 2, 6], LENGTH, temperature=1.0, logprobs=2),
    request("truncated", [5, 3, 5, 8, 9, 7, 9], LENGTH, temperature=0.7, top_k=5),
]
COUNTING = [
    request("greedy", [3, 1, 4, 1, 5], LENGTH, frequency_penalty=0.4, presence_penalty=0.1),
    request("drawn", [9, 2, 6], LENGTH, temperature=1.0, repetition_penalty=1.4, logprobs=0),
    request("suppressed", [5, 3, 5, 8], LENGTH, temperature=2.0, min_tokens=12, stop_token_ids=tuple(range(0, 160, 11))),
]


FORMS = [
    request("greedy", [3, 1, 4, 1, 5], LENGTH, structured_outputs=params_of(3), logprobs=2),
    request("drawn", [9, 2, 6], LENGTH, temperature=1.0, structured_outputs=params_of(6), logprobs=0),
    request("free", [5, 3, 5, 8, 9, 7, 9], 20, temperature=1.0, logprobs=1),
]


@pytest.fixture(scope="module")
def without_drafts(executor):
    """What `run` gives, by the kind of requests."""
    return cache(lambda kind: run(executor, KINDS[kind]))


KINDS = {"free": REQUESTS, "counting": COUNTING, "forms": FORMS}
# Each kind with each rate of rejected draft tokens, planned in one of the two ways; each kind and each rate occurs in both.
CORE = {(kind, wrong, (number + place) % 2 == 0) for number, kind in enumerate(KINDS) for place, wrong in enumerate((2, 5, 1000))}


@pytest.mark.parametrize(("kind", "wrong", "ahead"), tiered(product(KINDS, (2, 5, 1000), (False, True)), CORE))
def test_tokens_and_logprobs_do_not_depend_on_drafts(executor, without_drafts, kind, wrong, ahead):
    requests = KINDS[kind]
    tokens, ranks, steps = without_drafts(kind)
    assert len(set(tokens["drawn"])) > 5
    told = [[*one.prompt, *tokens[one.id]] for one in requests]
    with_drafts = run(executor, requests, Foreknowing(told, wrong), ahead=ahead)
    assert with_drafts[:2] == (tokens, ranks)
    assert with_drafts[2] <= steps * (1.0 if wrong == 2 else 0.7)


def test_more_drafts_than_it_takes_are_refused(executor):
    assert executor.capabilities().max_drafts == DRAFTS
    plan = make_plan(([1, 2, 3, 4, 5], 5, [1, 2]), step=7)
    plan.num_drafts[:] = 4
    with pytest.raises(ValueError, match="step 7 has 4 drafts in a row, the executor takes 3"):
        executor.submit(plan)


def test_rows_without_drafts_choose_one_token(executor):
    """A step without any has no logits but for those; a step with some has places for all."""
    result = executor.submit(make_plan(([1, 2, 3], 3, [1]), ([4], 1, [2]))).result()
    assert result.tokens.shape == (2, 1)
    assert result.num_tokens.tolist() == [1, 1]
    plan = make_plan(([1, 2, 3], 3, [1]), ([4], 1, [2]))
    plan.num_drafts[0] = 1
    result = executor.submit(plan).result()
    assert result.tokens.shape == (2, 1 + DRAFTS)
    assert result.num_tokens[1] == 1
    assert result.num_tokens.dtype == np.int32
