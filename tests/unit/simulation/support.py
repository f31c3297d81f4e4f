"""Small scenarios."""

import json
from pathlib import Path
from typing import Any

from jaxserve.config.fields import SchedulerConfig
from jaxserve.simulation.ledger import ENDS
from jaxserve.simulation.scenario import Scenario, build
from jaxserve.simulation.settings import ReplicaConfig
from jaxserve.workload.settings import SloConfig, WorkloadConfig


def scenario(
    *,
    replica: dict[str, Any] | None = None,
    scheduler: dict[str, Any] | None = None,
    slo: dict[str, Any] | None = None,
    **workload: Any,
) -> Scenario:
    return Scenario(
        replica=ReplicaConfig(**{"host_us": 0.0, **(replica or {})}),
        scheduler=SchedulerConfig(**(scheduler or {})),
        workload=WorkloadConfig(**workload),
        slo=SloConfig(**(slo or {})),
    )


def checked(plan: Scenario):
    """Run a scenario, checking the accounts at every event."""
    fleet = build(plan)
    before = fleet.now
    while fleet.step():
        fleet.ledger.check()
        assert fleet.now >= before
        before = fleet.now
    total = fleet.ledger.total()
    assert total.received == sum(getattr(total, end) for end in ENDS)
    assert not fleet.ledger.active
    return fleet


def trace(path: Path, *entries: Any) -> str:
    """A trace file; strings go in as they are."""
    path.write_text("".join((entry if isinstance(entry, str) else json.dumps(entry)) + "\n" for entry in entries))
    return str(path)


def request(arrival: float, prompt: float, output: int, **more: Any) -> dict[str, Any]:
    return {"arrival": arrival, "prompt_tokens": prompt, "output_tokens": output, **more}
