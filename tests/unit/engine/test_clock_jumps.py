"""A clock that jumps: what has a deadline ends with a typed error, everything else goes on, and no page is lost."""

from __future__ import annotations

import pytest

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.prefix_hash import CacheNamespace
from jaxserve.clock import VirtualClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.policies import Policies
from jaxserve.engine.budgets import Budgets
from jaxserve.engine.core import EngineCore
from jaxserve.engine.intake import Intake, IntakeLimits
from jaxserve.errors import DeadlineError
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.types import RequestOptions, ServiceClass
from tests.support.hash_executor import HashExecutor, expected

VOCAB, PAGES, PAGE = 50, 65, 4


@pytest.mark.parametrize("jump", [1.0, 3600.0, 1e9])
@pytest.mark.parametrize("after", [1, 3, 7])
def test_a_jump_ends_what_has_a_deadline_and_nothing_else(jump: float, after: int) -> None:
    clock = VirtualClock(start=1e6)
    cache = KVCache(PAGES, PAGE, prefix_caching=True)
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=8)
    core = EngineCore(Scheduler(config, cache, 64, clock), HashExecutor(PAGES, PAGE, 4), overlap=True)
    limits = IntakeLimits(max_model_len=64, vocab_size=VOCAB, eos_token_ids=frozenset(), max_sequences=16, seed=0, strict=True)
    budgets = Budgets(Policies(), ServiceClass.BATCH, num_pages=PAGES - 1, page_size=PAGE)
    intake = Intake(None, limits, CacheNamespace("m", "float32", "r"), budgets)
    names: dict[str, str] = {}
    for number in range(6):
        options = RequestOptions(timeout=0.5) if number % 2 else RequestOptions()
        (request,) = intake.prepare(
            {"prompt_token_ids": [number + 1, 9]}, SamplingParams(max_tokens=20), str(number), clock.now(), options
        )
        names[request.id] = str(number)
        core.add([request])
    found: dict[str, list[int]] = {name: [] for name in names.values()}
    errors: dict[str, Exception] = {}
    turns = 0
    while core.has_work:
        if turns == after:
            clock.advance(jump)
        turns += 1
        assert turns < 1000
        for update in core.step():
            if update.error is not None:
                errors[names[update.id]] = update.error
            elif update.token is not None:
                found[names[update.id]].append(update.token)
    assert set(errors) == {"1", "3", "5"}
    assert all(isinstance(error, DeadlineError) for error in errors.values())
    for number in (0, 2, 4):
        assert found[str(number)] == expected([number + 1, 9], 20)
    for number in (1, 3, 5):
        assert found[str(number)] == expected([number + 1, 9], 20)[: len(found[str(number)])]
    assert cache.num_free == cache.num_usable
