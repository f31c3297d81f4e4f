"""The load generator's parts: prompts, streams cut anywhere, reports, and agreement with a server's metrics."""

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import ConfigError
from jaxserve.load.agreement import agreement
from jaxserve.load.connection import Reply
from jaxserve.load.outcome import RequestOutcome
from jaxserve.load.report import report
from jaxserve.load.run import Prompts
from jaxserve.load.settings import LoadConfig
from jaxserve.load.target import _Stream
from jaxserve.types import ServiceClass
from jaxserve.workload.requests import WorkloadRequest
from jaxserve.workload.settings import SloConfig


def near(value: float) -> Any:
    """About this."""
    return pytest.approx(value)


def asked(
    number: int = 0, prompt: int = 8, output: int = 4, *, prefix: int | None = None, prefix_tokens: int = 0
) -> WorkloadRequest:
    return WorkloadRequest(number, 0.0, prompt, output, ServiceClass.INTERACTIVE_PAID, prefix=prefix, prefix_tokens=prefix_tokens)


def event(content: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


USAGE = {"prompt_tokens": 8, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
STREAM = (
    b": keep-alive\n\n"
    + event({"choices": [{"text": "a"}], "usage": None})
    + event({"choices": [{"text": "b"}], "usage": None})
    + event({"choices": [], "usage": USAGE})
    + b"data: [DONE]\n\n"
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_a_stream_is_the_same_wherever_it_is_cut(cuts: list[int]) -> None:
    outcome = RequestOutcome(asked(), 0.0)
    stream = _Stream(outcome)
    places = [0, *sorted(cuts), len(STREAM)]
    for now, (start, end) in enumerate(itertools.pairwise(places)):
        stream.feed(STREAM[start:end], float(now))
    stream.finish(Reply(200))
    assert outcome.error is None
    assert len(outcome.pieces) == 2
    assert (outcome.prompt_tokens, outcome.output_tokens, outcome.cached_tokens) == (8, 3, 2)


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (429, b'{"error": {"code": "queue_full"}}', "queue_full"),
        (502, b"<html>", "http_502"),
        (200, event({"choices": [{"text": "a"}]}), "cut_off"),
        (200, event({"error": {"code": "engine_dead"}}), "engine_dead"),
    ],
)
def test_what_did_not_finish_says_why(status: int, body: bytes, error: str) -> None:
    outcome = RequestOutcome(asked(), 0.0)
    stream = _Stream(outcome)
    stream.feed(body, 1.0)
    stream.finish(Reply(status))
    assert outcome.error == error


def test_prompts_are_as_long_as_asked_repeat_and_share_their_prefix() -> None:
    prompts = Prompts(range(100, 200), seed=1)
    first, second = asked(0, 40, prefix=3, prefix_tokens=16), asked(1, 50, prefix=3, prefix_tokens=16)
    assert prompts.tokens(first) == Prompts(range(100, 200), seed=1).tokens(first)
    assert (len(prompts.tokens(first)), len(prompts.tokens(second))) == (40, 50)
    assert prompts.tokens(first)[:16] == prompts.tokens(second)[:16]
    assert prompts.tokens(first)[16:40] != prompts.tokens(second)[16:40]
    assert prompts.tokens(first) != Prompts(range(100, 200), seed=2).tokens(first)
    assert set(prompts.tokens(second)) <= set(range(100, 200))


def outcomes() -> list[RequestOutcome]:
    """One that keeps the SLO, one slow to begin, one that failed; due at 10, 11 and 12."""
    return [
        RequestOutcome(asked(0), 10.0, 10.0, [10.1, 10.12, 10.14], 10.2, prompt_tokens=8, output_tokens=3, status=200),
        RequestOutcome(asked(1), 11.0, 11.5, [12.0, 12.04], 12.1, prompt_tokens=8, output_tokens=5, status=200, retries=1),
        RequestOutcome(asked(2), 12.0, 12.01, [], 14.0, status=503, error="draining"),
    ]


def test_a_report_counts_from_when_requests_were_due() -> None:
    result = report("m", outcomes(), SloConfig(), [])
    assert (result.requests, result.finished, result.retries, result.errors) == (3, 2, 1, {"draining": 1})
    assert (result.seconds, result.output_tokens, result.output_tokens_per_s) == (4.0, 8, 2.0)
    assert (result.goodput_tokens_per_s, result.slo_share) == (0.75, 1 / 3)
    assert result.ttft.max == near(1.0)
    assert (result.itl.count, result.itl.max, result.itl.p50) == (2, near(0.02), near(0.01))
    assert (result.gap.count, result.gap.max) == (3, near(0.04))
    assert (result.lag.count, result.lag.max) == (2, near(0.01))  # one that came back was not late
    assert result.ttft_curve == ((near(0.1), 0.5), (near(1.0), 1.0))
    assert msgspec.json.encode(result.as_dict())


def test_a_report_of_failures_alone_is_all_zeros() -> None:
    result = report("m", outcomes()[2:], SloConfig(), [])
    assert (result.finished, result.ttft.count, result.output_tokens, result.slo_share) == (0, 0, 0, 0.0)
    assert result.ttft_curve == ()


def page(finished: int, tokens: int, ttft: float) -> str:
    return (
        "# TYPE jaxserve:request_success counter\n"
        f'jaxserve:request_success_total{{finished_reason="stop"}} {finished - 1}\n'
        f'jaxserve:request_success_total{{finished_reason="length"}} 1\n'
        "# TYPE jaxserve:generation_tokens counter\n"
        f"jaxserve:generation_tokens_total {tokens}\n"
        "# TYPE jaxserve:time_to_first_token_seconds histogram\n"
        f'jaxserve:time_to_first_token_seconds_bucket{{le="+Inf"}} {finished}\n'
        f"jaxserve:time_to_first_token_seconds_count {finished}\n"
        f"jaxserve:time_to_first_token_seconds_sum {ttft}\n"
    )


def test_agreement_is_about_the_run_alone() -> None:
    found = {pair.name: pair for pair in agreement(page(5, 100, 1.0), page(7, 108, 2.0), outcomes())}
    assert (found["finished"].clients, found["finished"].server) == (2.0, 2.0)
    assert (found["output"].clients, found["output"].server) == (8.0, 8.0)
    assert (found["mean TTFT"].clients, found["mean TTFT"].server) == (near(550.0), 500.0)
    assert found["mean ITL"].clients == near(1e3 * 0.08 / 6)


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"base_url": "localhost:8000"}, "base_url"),
        ({"base_url": "ftp://x"}, "base_url"),
        ({"concurrency": 0}, "concurrency"),
        ({"warmup": -1}, "warmup"),
        ({"request_timeout_s": float("nan")}, "request_timeout_s"),
        ({"max_model_len": 1}, "max_model_len"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(settings: dict[str, Any], param: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LoadConfig(**settings)
    assert caught.value.param == param
