import pytest

from jaxserve.metrics.instruments import Instruments
from jaxserve.metrics.requests import FLUSH_SECONDS, Objective, RequestRecorder
from jaxserve.types import ServiceClass
from tests.unit.metrics.scrape import recorded

PAID = ServiceClass.INTERACTIVE_PAID
LABELS = ("1k", "pico", "interactive_paid")  # in the order of their names


@pytest.fixture
def instruments():
    return Instruments()


@pytest.fixture
def recorder(instruments):
    return RequestRecorder(instruments, "pico", Objective(first_token=1.0, inter_token=0.1))


def run_one(recorder, *, service_class=PAID, prompt=7, first=0.5, gaps=(0.05, 0.05), reason="length"):
    record = recorder.received()
    record.prepared(service_class, prompt, 100.0)
    now = 100.0 + first
    record.started(prompt, 0.2, now)
    record.tokens(0, 1, now)
    for gap in gaps:
        now += gap
        record.tokens(0, 1, now)
    record.ended(0, reason, 1 + len(gaps), now)
    record.finished()


def test_one_request(instruments, recorder):
    run_one(recorder)
    seen = recorded(instruments)
    model = ("pico",)
    assert seen["requests_received_total", model] == seen["requests_finished_total", model] == 1
    assert seen["requests_active", model] == 0
    assert seen["request_success_total", ("1k", "length", "pico", "interactive_paid")] == 1
    assert seen["prompt_tokens_total", LABELS] == 7
    assert seen["generation_tokens_total", LABELS] == seen["goodput_tokens_total", LABELS] == 3
    assert seen["requests_within_slo_total", LABELS] == 1
    for name, seconds in {
        "time_to_first_token_seconds": 0.5,
        "request_queue_time_seconds": 0.2,
        "request_prefill_time_seconds": 0.3,
        "request_decode_time_seconds": 0.1,
        "e2e_request_latency_seconds": 0.6,
        "inter_token_latency_seconds": 0.1,
        "request_prompt_tokens": 7,
        "request_generation_tokens": 3,
    }.items():
        assert seen[f"{name}_sum", LABELS] == pytest.approx(seconds), name
        assert seen[f"{name}_count", LABELS] == (2 if name.startswith("inter") else 1), name


def test_gaps_fall_in_the_bucket_whose_bound_they_do_not_exceed(instruments, recorder):
    run_one(recorder, gaps=(0.001, 0.0011, 7.0, 0.0))
    buckets = {
        labels[1]: value
        for (name, labels), value in recorded(instruments).items()
        if name == "inter_token_latency_seconds_bucket"
    }
    # Times are differences of larger numbers: those on a bound may be a rounding above it.
    assert buckets["0.002"] == 3
    assert buckets["5.0"] == 3
    assert buckets["+Inf"] == 4


@pytest.mark.parametrize(
    ("first", "gaps", "within"),
    [(1.0, (0.05,), True), (1.01, (0.05,), False), (0.5, (0.02, 0.16), True), (0.5, (0.05, 0.16), False), (0.5, (), True)],
)
def test_goodput_is_of_requests_within_the_objective(instruments, recorder, first, gaps, within):
    run_one(recorder, first=first, gaps=gaps)
    run_one(recorder, service_class=ServiceClass.BATCH, first=first, gaps=gaps)
    seen = recorded(instruments)
    tokens = 1 + len(gaps)
    assert seen["goodput_tokens_total", LABELS] == (tokens if within else 0)
    assert seen["requests_within_slo_total", LABELS] == within
    assert seen["goodput_tokens_total", ("1k", "pico", "batch")] == tokens


def test_each_sequence_must_be_in_time(instruments, recorder):
    record = recorder.received()
    record.prepared(PAID, 5, 0.0)
    record.started(5, 0.0, 0.1)
    for index, gap in ((0, 0.05), (1, 0.3)):
        record.tokens(index, 1, 0.1)
        record.tokens(index, 1, 0.1 + gap)
        record.ended(index, "stop", 2, 0.1 + gap)
    record.finished()
    seen = recorded(instruments)
    assert seen["goodput_tokens_total", LABELS] == 0
    assert seen["request_success_total", ("1k", "stop", "pico", "interactive_paid")] == 2
    assert seen["request_decode_time_seconds_sum", LABELS] == pytest.approx(0.35)


def test_ends_of_every_kind_balance(instruments, recorder):
    run_one(recorder)
    active = recorder.received()
    rejected = recorder.received()
    rejected.rejected("queue_full")
    aborted = recorder.received()
    aborted.prepared(PAID, 3, 0.0)
    aborted.started(3, 0.0, 0.1)
    aborted.tokens(0, 1, 0.1)
    aborted.aborted("client_gone")
    seen = recorded(instruments)
    assert seen["requests_rejected_total", ("pico", "queue_full")] == 1
    assert seen["requests_aborted_total", ("pico", "client_gone")] == 1
    assert seen["requests_received_total", ("pico",)] == 4
    assert seen["requests_active", ("pico",)] == 1
    with pytest.raises(AssertionError, match="ends once"):
        aborted.rejected("late")
    active.aborted("abort")
    assert recorded(instruments)["requests_active", ("pico",)] == 0


def test_tokens_are_written_now_and_then_and_when_the_last_request_ends(instruments, recorder):
    record = recorder.received()
    record.prepared(PAID, 3, 0.0)
    record.started(3, 0.0, 10.0)
    record.tokens(0, 1, 10.0)
    recorder.flush(10.0)  # the first
    record.tokens(0, 2, 10.1)
    recorder.flush(10.0 + FLUSH_SECONDS / 2)
    assert recorded(instruments)["generation_tokens_total", LABELS] == 1
    recorder.flush(10.0 + FLUSH_SECONDS)
    seen = recorded(instruments)
    assert seen["generation_tokens_total", LABELS] == 3
    assert seen["inter_token_latency_seconds_count", LABELS] == 2  # two that came together: a gap, and none
    record.tokens(0, 1, 10.2)
    record.ended(0, "stop", 4, 10.2)
    record.finished()
    seen = recorded(instruments)
    assert seen["generation_tokens_total", LABELS] == 4
    assert seen["inter_token_latency_seconds_count", LABELS] == 3
    assert seen["inter_token_latency_seconds_sum", LABELS] == pytest.approx(0.2)


def test_tokens_that_come_together_have_no_time_between_them(instruments, recorder):
    record = recorder.received()
    record.prepared(PAID, 3, 0.0)
    record.started(3, 0.0, 1.0)
    record.tokens(0, 3, 1.0)
    record.ended(0, "stop", 3, 1.0)
    record.finished()
    seen = recorded(instruments)
    assert seen["inter_token_latency_seconds_count", LABELS] == 2
    assert seen["inter_token_latency_seconds_sum", LABELS] == 0
    assert seen["generation_tokens_total", LABELS] == 3


def test_the_tier_is_that_of_the_prompt(instruments, recorder):
    run_one(recorder, prompt=5000)
    assert recorded(instruments)["prompt_tokens_total", ("16k", "pico", "interactive_paid")] == 5000
