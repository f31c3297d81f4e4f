"""What random operations found, as short scripts: each failed once."""

from typing import Any

from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.policies import Policies, TenantPolicy
from jaxserve.types import RequestOptions, ServiceClass
from tests.support.checked_engine import CheckedEngine
from tests.support.watched_parts import Setup, Wish

BATCH, FREE, PAID = ServiceClass.BATCH, ServiceClass.INTERACTIVE_FREE, ServiceClass.INTERACTIVE_PAID


def engine(policies=None, page_size=1, swap_slots=0, **config: Any):
    """Pages for forty tokens."""
    settings = {"max_num_batched_tokens": 64, "growth_reserve": 0.0, "itl_target_ms": 0.0, "overlap": False} | config
    return CheckedEngine(
        Setup(
            config=SchedulerConfig(low_watermark=0.0, high_watermark=0.0, **settings),
            policies=policies or Policies(),
            num_pages=40 // page_size + 1,
            page_size=page_size,
            swap_slots=swap_slots,
        )
    )


def wish(first, length, output, service_class=PAID, *, n=1, queue_timeout=None, tenant="ours"):
    """A prompt that begins with its own token."""
    options = RequestOptions(tenant=tenant, service_class=service_class, queue_timeout=queue_timeout)
    return Wish(prompt=(first, *range(length - 1)), output=output, n=n, ignore_eos=True, options=options)


def steps(checked, count):
    for _ in range(count):
        checked.step()


def test_a_sequence_preempted_often_leaves_settled_rows_alone():
    checked = engine()
    checked.add(wish(1, 10, 25, BATCH))
    for first in (2, 3):
        checked.step()
        checked.add(wish(first, 35, 2))  # needs the batch sequence's pages
        steps(checked, 4)
    assert [event.id for event in checked.events] == ["0/0", "0/0"]
    checked.add(wish(4, 21, 15, FREE))
    checked.step()
    checked.add(wish(5, 30, 5, FREE))  # waits: what runs is settled before it is found not to fit
    checked.finish()
    assert "3/0" in [event.id for event in checked.events]


def test_cached_pages_that_come_back_into_use_count_against_the_cap():
    checked = engine(Policies(tenants={"ours": TenantPolicy(kv_share=0.5, kv_cap=0.5)}))
    checked.add(wish(1, 18, 1))
    checked.finish()
    checked.add(wish(2, 9, 6))
    checked.step()
    checked.add(wish(1, 18, 2))
    checked.finish()
    assert checked.finished == 3


def test_the_sibling_of_a_sequence_that_never_started_keeps_its_deadline():
    checked = engine(max_num_seqs=1)
    checked.add(wish(1, 5, 20))
    checked.step()
    checked.add(wish(2, 5, 5, n=3, queue_timeout=0.5))
    checked.abort("1/0")
    checked.wait(0.5)
    checked.step()
    assert checked.failed == 2
    checked.finish()


def test_a_page_that_another_row_computes_in_this_step_is_not_copied():
    checked = engine(page_size=4, max_num_seqs=3)
    checked.add(wish(1, 3, 20, BATCH))
    checked.add(wish(2, 6, 12, BATCH, n=3))
    steps(checked, 6)
    assert len(checked.got["1/0"]) > 3
    assert "1/2" not in checked.computed
    prompt, output = checked.requests["1/0"].prompt, checked.wanted["1/0"]
    checked.add(wish(3, 38, 2))  # takes every page, those that siblings share as well
    checked.step()
    checked.step()
    assert len(checked.events) == 3
    checked.add(
        Wish(prompt=(*prompt, *output[:4]), output=2, ignore_eos=True, options=RequestOptions(tenant="ours", service_class=PAID))
    )
    checked.abort("0/0")
    checked.abort("1/1")
    checked.finish()


def test_batch_decodes_that_waited_long_are_in_a_step_once():
    checked = engine(max_num_seqs=2, max_num_batched_tokens=4)
    checked.add(wish(1, 2, 20, BATCH))
    checked.step()
    checked.add(wish(2, 33, 3))
    steps(checked, 8)
    assert not any("0/0" in plan.ids for plan in checked.executor.plans[1:]), "the prompt takes all tokens"
    checked.add(wish(3, 2, 2))  # waits for a row: what runs is settled before it is found not to fit
    checked.finish()
    assert "0/0" in checked.executor.plans[9].ids


def test_pages_that_swap_while_nothing_else_runs_reach_their_places():
    checked = engine(swap_slots=40)
    checked.add(wish(1, 20, 10, BATCH))
    steps(checked, 2)
    checked.add(wish(2, 25, 3))
    checked.finish()
    assert [event.swapped for event in checked.events] == [True]


def test_pins_of_a_tenant_at_its_cap_do_not_stop_the_first_of_all():
    checked = engine(Policies(tenants={"ours": TenantPolicy(kv_share=0.5, kv_cap=0.5)}))
    checked.add(wish(1, 8, 1))
    checked.finish()
    checked.pin("ours", (1, *range(7)))
    checked.add(wish(2, 5, 12))
    checked.step()
    checked.add(wish(3, 5, 12, tenant="theirs"))
    checked.finish()
    assert checked.events == []
