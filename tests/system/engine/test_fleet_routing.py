"""What a router decides in a live fleet is what the simulator's decides that is told the same."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import get_args

import pytest

from jaxserve.engine.events import Finished
from jaxserve.engine.frontend import Frontend
from jaxserve.engine.replicas.fleet import FleetSettings
from jaxserve.routing.make import RouterName, make_router
from jaxserve.routing.router import Router
from jaxserve.sampling.params import SamplingParams
from jaxserve.simulation.scenario import Scenario, build
from jaxserve.simulation.settings import ReplicaConfig
from jaxserve.types import RequestOptions, ServiceClass
from jaxserve.workload.settings import WorkloadConfig
from tests.support.hash_engine import engine_fleet
from tests.support.recorded_router import OF_PAGES, RecordedRouter, replayed
from tests.support.tiny_checkpoint import write_tiny_checkpoint

pytestmark = pytest.mark.asyncio

REQUESTS, SHARED, SEED = 24, 132, 7
QUICK = FleetSettings(hang_seconds=2.0, wait_seconds=20.0)


async def ask(front: Frontend, number: int) -> None:
    """One of three system prompts, of one of two tenants, and some of its own."""
    prompt = [number % 3 + 1] * SHARED + [number + 10, 5, 6]
    params = SamplingParams(temperature=0.0, max_tokens=12 + number)
    options = RequestOptions(tenant="ab"[number % 2], service_class=tuple(ServiceClass)[number % 3])
    events = [event async for event in front.generate({"prompt_token_ids": prompt}, params, options=options)]
    assert isinstance(events[-1], Finished)


@pytest.mark.parametrize("name", get_args(RouterName))
async def test_the_simulators_router_decides_as_the_fleets_did(name: RouterName, tmp_path: Path) -> None:
    """Requests in waves, of which one loses a replica."""
    router = RecordedRouter(make_router(name, seed=SEED))
    tokenizer = str(write_tiny_checkpoint(tmp_path))
    async with engine_fleet(2, QUICK, router=router, tokenizer=tokenizer, step_seconds=0.005, max_num_seqs=32) as fleet:
        for wave in range(2):
            asked = asyncio.gather(*(ask(fleet.front, wave * REQUESTS + number) for number in range(REQUESTS)))
            while fleet.link.load().running < REQUESTS // 2:
                await asyncio.sleep(0.005)
            if wave:
                os.kill(fleet.engines[0].process.pid, signal.SIGKILL)
            await asked
    assert len(router.choices) > 2 * REQUESTS, "what the killed one had was routed again"
    assert len(set(router.choices)) == 2
    methods = {one.method for one in router.told}
    assert methods - set(OF_PAGES) == {"join", "leave", "observe", "choose", "started", "ended"}
    assert ("stored" in methods) == (simulated(name).pages is not None)
    assert replayed(router.told, simulated(name)) == router.choices


def simulated(name: RouterName) -> Router:
    """The router of a simulation, without its replicas."""
    scenario = Scenario(replica=ReplicaConfig(router=name, replicas=2), workload=WorkloadConfig(seed=SEED))
    router = build(scenario)._router
    for replica in range(scenario.replica.replicas):
        router.leave(str(replica))
    return router
