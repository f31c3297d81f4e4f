"""Prompts that must be whole in a step: none is cut, none waits for ever, and a step has as many as fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.config.policies import Policies, TenantPolicy
from jaxserve.step.plan import Plan
from tests.support.bench import BATCH, FREE, PAID, Bench, request

BUDGET = 32
RESERVES = Policies(tenants={"a": TenantPolicy(prefill_reserve=0.5), "b": TenantPolicy(prefill_reserve=0.4)})
REQUESTS = st.tuples(st.integers(2, BUDGET), st.sampled_from([PAID, FREE, BATCH]), st.sampled_from(["a", "b", "c"]))


def whole(plan: Plan) -> bool:
    return np.array_equal(np.diff(plan.query_start), plan.kv_length)


def bench(**more: Any) -> Bench:
    return Bench(budget=BUDGET, whole_prompts=True, max_len=BUDGET + 1, **more)


def test_a_step_has_the_prompts_that_fit() -> None:
    made = bench()
    made.add(*(request(name, size, task="score") for name, size in (("a", 21), ("b", 16), ("c", 9), ("d", 4))))
    assert made.step()[0].ids == ("a", "c", "d"), "b would not fit beside the first, and those behind it do"
    assert made.step()[0].ids == ("b",)
    assert set(made.ended) == {"a", "b", "c", "d"}


def test_batch_goes_on_beside_others_that_never_end() -> None:
    made = bench()
    made.add(request("long", BUDGET, task="score", service_class=BATCH))
    for number in range(200):
        made.add(request(f"short {number}", 20, task="score"))
        made.step()
        made.clock.advance(1.0)
        if "long" in made.ended:
            return
    raise AssertionError("a whole budget was never left to it")


@settings(max_examples=40, deadline=None)
@given(asked=st.lists(REQUESTS, min_size=1, max_size=12), reserves=st.booleans(), between=st.integers(1, 3))
def test_every_prompt_is_whole_in_one_step(asked: list[tuple[int, object, str]], reserves: bool, between: int) -> None:
    made = bench(policies=RESERVES if reserves else None)
    names = [f"r{number}" for number in range(len(asked))]
    left = [
        request(name, size, task="score", service_class=kind, tenant=tenant)
        for name, (size, kind, tenant) in zip(names, asked, strict=True)
    ]
    steps = 0
    while left or made.scheduler.has_work:
        made.add(*left[:between])
        left = left[between:]
        plan, _ = made.step()
        assert whole(plan)
        steps += 1
        assert steps <= 4 * len(asked) + 4
    assert set(made.ended) == set(names)
    assert made.cache.num_free == made.cache.num_usable
