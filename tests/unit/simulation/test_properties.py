"""Any small scenario: accounts and the scheduler's own invariants hold at every event, and everything comes to an end."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.simulation.ledger import ENDS
from jaxserve.simulation.scenario import build
from tests.unit.simulation.support import scenario

REPLICAS = st.fixed_dictionaries(
    {
        "replicas": st.integers(1, 3),
        "num_pages": st.integers(30, 90),
        "page_size": st.sampled_from([4, 16]),
        "prefix_caching": st.booleans(),
        "host_us": st.sampled_from([0.0, 3000.0]),
        "swap_gib": st.sampled_from([0.0, 0.01]),
        "fail": st.sampled_from([None, "0@0.1", "0@0.05-0.2", "0@0.0,0@0.3", "0@0.1-0.15,0@0.2-0.3"]),
    }
)
SCHEDULERS = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 12),
        "max_num_batched_tokens": st.integers(12, 64),
        "max_waiting": st.integers(1, 20),
        "long_prefill_token_threshold": st.sampled_from([0, 8]),
        "overlap": st.booleans(),
        "itl_target_ms": st.sampled_from([0.0, 10.0, 50.0]),
    }
)
WORKLOADS = st.fixed_dictionaries(
    {
        "requests": st.integers(1, 40),
        "rate": st.sampled_from([5.0, 100.0, 2000.0]),
        "arrivals": st.sampled_from(["poisson", "bursts", "diurnal", "spike"]),
        "prompt_tokens": st.integers(1, 60),
        "output_tokens": st.integers(1, 30),
        "retries": st.integers(0, 3),
        "backoff_s": st.sampled_from([0.0, 0.1]),
        "seed": st.integers(0, 3),
        "tenants": st.sampled_from(["default=1", "a=20,b=1", "a=1,b=1,c=1"]),
        "classes": st.sampled_from([None, "interactive_paid=1,batch=1", "interactive_paid=1,interactive_free=1,batch=1"]),
    }
)


@settings(max_examples=40, deadline=None)
@given(replica=REPLICAS, scheduler=SCHEDULERS, workload=WORKLOADS)
def test_accounts_hold_at_every_event(replica: dict[str, Any], scheduler: dict[str, Any], workload: dict[str, Any]) -> None:
    fleet = build(scenario(replica=replica, scheduler=scheduler, **workload))
    ledger, now = fleet.ledger, 0.0
    while fleet.step():
        ledger.check()
        assert fleet.now >= now, "time goes back"
        now = fleet.now
        for one in fleet._replicas:
            if one is not None:
                one._scheduler.check()
                assert one.assigned.keys() <= ledger.active.keys()
    total = ledger.total()
    assert not ledger.active
    assert total.received == workload["requests"] == sum(getattr(total, end) for end in ENDS)
    assert sum(ledger.refusals.values()) >= total.refused + total.expired
    assert fleet.totals.recomputed <= fleet.totals.tokens
    assert total.itl.count + len(total.ttft) == total.output_tokens
    if replica["fail"] is None:
        assert total.failed == ledger.failovers == fleet.totals.lost == 0
