"""What goes between engine and front ends comes out as it went in."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.engine.link import EngineLoad
from jaxserve.engine.loop import Refusal
from jaxserve.engine.remote.messages import (
    Add,
    Answer,
    decode_from_engine,
    decode_from_frontend,
    encode,
    error_of,
    outcomes_of,
    turned,
    wire_error,
)
from jaxserve.errors import (
    DeadlineError,
    ErrorCode,
    InternalError,
    JaxserveError,
    QueueFullError,
)
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.request import EngineRequest, Update
from jaxserve.step.plan import LogprobRows
from jaxserve.types import FinishReason, ServiceClass

tokens = st.integers(0, 2**31 - 1)
params = st.builds(
    SamplingParams,
    n=st.integers(1, 128),
    temperature=st.floats(0.0, 100.0),
    logit_bias=st.dictionaries(tokens, st.floats(-100.0, 100.0), max_size=3),
    allowed_token_ids=st.none() | st.lists(tokens, min_size=1, max_size=3).map(tuple),
    seed=st.none() | st.integers(-(2**63), 2**64 - 1),
    stop_token_ids=st.lists(tokens, max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    logprobs=st.none() | st.integers(0, 20),
)
requests = st.builds(
    EngineRequest,
    id=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    prompt=st.lists(tokens, max_size=20).map(tuple),
    params=params,
    max_tokens=st.integers(1, 2**31),
    seed=st.integers(-(2**63), 2**64 - 1),
    eos_token_ids=st.frozensets(tokens, max_size=3),
    cache_root=st.binary(max_size=16),
    arrival=st.floats(0.0, 1e9),
    tenant=st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    service_class=st.sampled_from(ServiceClass),
    parent=st.none() | st.just("x"),
    queue_deadline=st.just(math.inf) | st.floats(0.0, 1e9),
    deadline=st.just(math.inf) | st.floats(0.0, 1e9),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(requests, max_size=3))
def test_requests(given: list[EngineRequest]) -> None:
    message = decode_from_frontend(encode(Add(given)))
    assert isinstance(message, Add)
    assert message.requests == given


def rows(first: int, count: int, columns: int = 3) -> LogprobRows:
    numbers = np.arange(first, first + count)
    tops = numbers[:, None] * 10 + np.arange(columns)
    return LogprobRows(
        (-numbers / 8).astype(np.float32), numbers.astype(np.int32), tops.astype(np.int32), (-tops / 16).astype(np.float32)
    )


def roundtrip(outcomes: list[Update | Refusal]) -> list[Update | Refusal]:
    return outcomes_of(decode_from_engine(encode(turned(1.5, EngineLoad(running=3), outcomes))))  # type: ignore[arg-type]


def row_of(update: Update) -> tuple[float, int, list[int], list[float]]:
    assert update.logprobs is not None
    place, found = update.index, update.logprobs
    return found.chosen[place], found.rank[place], found.top_ids[place].tolist(), found.top[place].tolist()


def test_updates() -> None:
    plain = [
        Update("a", 5),
        Update("b", 6, num_cached=16, queue_time=0.25),
        Update("c", 7, reason=FinishReason.STOP, matched=7),
        Update("d", reason=FinishReason.ABORT),
    ]
    assert roundtrip(list(plain)) == plain


@pytest.mark.parametrize("steps", [1, 2])
def test_each_token_has_its_own_row_and_no_other_row_is_sent(steps: int) -> None:
    """Of one step, and of several in one turn."""
    logprobs = [rows(100 * step, 9) for step in range(steps)]
    sent = [Update(str(place), place, logprobs[place % steps], place) for place in (7, 2, 4)]
    sent.insert(1, Update("none", 1))
    found = roundtrip(list(sent))
    assert [row_of(update) for update in found if update.token != 1] == [row_of(update) for update in sent if update.token != 1]
    assert found[1] == sent[1]
    assert len(found[0].logprobs.chosen) == 3


def test_scores_of_a_prompt() -> None:
    (found,) = roundtrip([Update("a", score=rows(3, 5, columns=20))])
    assert isinstance(found, Update)
    assert found.score is not None
    for name in ("chosen", "rank", "top_ids", "top"):
        np.testing.assert_array_equal(getattr(found.score, name), getattr(rows(3, 5, columns=20), name))


def test_refusals_and_failures_keep_class_field_and_hint() -> None:
    refusal = Refusal(("a", "b"), QueueFullError("full", retry_after=2.5))
    failure = Update("c", error=DeadlineError("late", param="timeout"))
    found = roundtrip([refusal, failure])
    assert isinstance(found[0], Refusal)
    assert (found[0].ids, type(found[0].error), found[0].error.retry_after) == (("a", "b"), QueueFullError, 2.5)
    assert isinstance(found[1], Update)
    assert found[1].error is not None
    assert (type(found[1].error), found[1].error.message, found[1].error.param) == (DeadlineError, "late", "timeout")


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_has_a_class_that_comes_back(code: ErrorCode) -> None:
    kind = next(kind for kind in every_error() if kind.code is code)
    error = error_of(wire_error(kind("message", param="field", retry_after=1.0)))
    assert (error.code, error.message, error.param, error.retry_after) == (code, "message", "field", 1.0)
    assert type(error) is (InternalError if code is ErrorCode.INTERNAL else kind)


def every_error() -> list[type[JaxserveError]]:
    found: list[type[JaxserveError]] = [JaxserveError]
    for kind in found:
        found += kind.__subclasses__()
    return found[1:]


def test_what_is_no_error_of_ours_is_an_internal_one() -> None:
    error = error_of(wire_error(RuntimeError("a bug")))
    assert isinstance(error, InternalError)
    assert "a bug" in error.message


def test_answers() -> None:
    assert decode_from_engine(encode(Answer(3, b"x"))) == Answer(3, b"x")
    with pytest.raises(msgspec.DecodeError):
        decode_from_engine(b"\xc1")
