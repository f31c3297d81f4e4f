"""The policies that benchmarks.comparisons plays, on short runs of the simulator: each does what its name says."""

from benchmarks.comparisons import ALWAYS_SWAP, FIRST_COME, VICTIMS, StaticBatches, run
from jaxserve.scheduler.policy import DEFAULT_POLICY, Policy

SHORT = {"requests": 80, "rate": 30.0, "classes": "batch=1", "prompt_tokens": 300, "output_tokens": 200}
ROWS = {"max_num_seqs": 16, "max_num_batched_tokens": 1024, "growth_reserve": 0.0}
LITTLE = {"num_pages": 300, "prefix_caching": False}


def test_static_batches_leave_rows_empty():
    static = run(scheduler=ROWS, policy=Policy(may_start=StaticBatches(16)), **SHORT)
    continuous = run(scheduler=ROWS, **SHORT)
    assert static.all.finished == continuous.all.finished == 80
    assert static.engines.mean_rows < continuous.engines.mean_rows
    assert static.seconds > continuous.seconds


def test_victims_differ_and_nobody_is_lost():
    reports = {name: run(replica=LITTLE, scheduler=ROWS, policy=policy, **SHORT) for name, policy in VICTIMS.items()}
    assert all(report.engines.preemptions and report.all.finished == 80 for report in reports.values())
    assert len({report.engines.tokens_recomputed for report in reports.values()}) == 3


def test_everything_is_swapped():
    replica = {**LITTLE, "swap_gib": 64.0, "swap_gbps": 1.0}  # too slow for the default policy
    engines = [run(replica=replica, scheduler=ROWS, policy=policy, **SHORT).engines for policy in (ALWAYS_SWAP, DEFAULT_POLICY)]
    assert [one.swapped > 0 for one in engines] == [True, False]
    assert engines[0].tokens_recomputed == 0


def test_who_comes_first_is_served_first():
    """Light tenants wait with the heavy one unless shares are fair."""
    settings = {"requests": 400, "rate": 120.0, "prompt_tokens": 256, "tenants": "heavy=20,light=1"}
    reports = [run(scheduler=ROWS, policy=policy, **settings) for policy in (FIRST_COME, DEFAULT_POLICY)]
    unfair, fair = (report.tenants["light"].ttft.p50 for report in reports)
    assert unfair > 2 * fair
