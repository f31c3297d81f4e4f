"""Output lengths expected by tenant and class."""

import pytest

from jaxserve.scheduler.estimates import MAX_TENANTS, PRIOR, OutputLengths
from tests.support.bench import BATCH, FREE, PAID, Bench, request


def asking(tenant="a", service_class=PAID, max_tokens=10_000):
    return request("r", 4, max_tokens, tenant=tenant, service_class=service_class)


def test_before_any_output_ended_a_prior_holds():
    lengths = OutputLengths()
    assert lengths.expected(asking()) == PRIOR
    assert lengths.expected(asking(max_tokens=100)) == 100.0


def test_a_tenants_outputs_in_a_class_are_averaged():
    lengths = OutputLengths()
    lengths.observe(asking(), 160)
    assert lengths.expected(asking()) == 160.0
    lengths.observe(asking(), 0)
    assert lengths.expected(asking()) == 150.0, "the newest weighs a sixteenth"


def test_a_new_tenant_gets_the_average_of_its_class():
    lengths = OutputLengths()
    lengths.observe(asking("a", PAID), 40)
    lengths.observe(asking("a", BATCH), 400)
    assert lengths.expected(asking("b", PAID)) == 40.0
    assert lengths.expected(asking("b", BATCH)) == 400.0
    assert lengths.expected(asking("b", FREE)) == PRIOR
    assert lengths.expected(asking("a", FREE)) == PRIOR, "a class of its own"


def test_tenants_do_not_change_each_others_averages():
    lengths = OutputLengths()
    lengths.observe(asking("a"), 40)
    lengths.observe(asking("b"), 400)
    assert (lengths.expected(asking("a")), lengths.expected(asking("b"))) == (40.0, 400.0)


@pytest.mark.parametrize(
    ("num_output", "max_tokens", "left"),
    [
        (0, 1000, 100.0),
        (60, 1000, 40.0),
        (80, 1000, 20.0),
        (100, 1000, 25.0),
        (400, 1000, 100.0),
        (980, 1000, 20.0),
        (50, 50, 0.0),
    ],
)
def test_what_is_left_of_an_output(num_output, max_tokens, left):
    """100 are expected; one that is longer goes on for a fourth of what it is."""
    lengths = OutputLengths()
    lengths.observe(asking(), 100)
    assert lengths.remaining(asking(max_tokens=max_tokens), num_output) == left


def test_expectations_are_reconciled_with_what_happened():
    lengths = OutputLengths()
    lengths.observe(asking(), 100)
    lengths.observe(asking(), 36)
    assert (lengths.expected_tokens, lengths.actual_tokens) == (PRIOR + 100.0, 136)


def test_the_tenant_not_seen_for_longest_is_forgotten():
    lengths = OutputLengths()
    lengths.observe(asking("a"), 50)
    lengths.observe(asking("b"), 60)
    lengths.observe(asking("a"), 50)
    for number in range(MAX_TENANTS - 1):
        lengths.observe(asking(f"t{number}"), 1000)
    assert lengths.expected(asking("a")) == 50.0
    assert lengths.expected(asking("b")) == lengths.expected(asking("new")) > 500


def test_the_scheduler_learns_from_outputs_that_end_by_themselves():
    bench = Bench()
    bench.add(request("a", 4, 7), request("b", 4, 300))
    bench.run(20)
    bench.scheduler.abort(["b"])
    assert bench.scheduler.lengths.expected(asking("")) == 7.0
    assert bench.scheduler.lengths.actual_tokens == 7
