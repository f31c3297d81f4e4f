"""What goes between engine and front ends comes out as it went in."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.cache.prefix_hash import CacheNamespace
from jaxserve.config.policies import Policies
from jaxserve.engine.budgets import Budgets
from jaxserve.engine.calls import Flush, Trace, answer_type
from jaxserve.engine.intake import Intake, IntakeLimits
from jaxserve.engine.link import EngineLoad
from jaxserve.engine.loop import Refusal
from jaxserve.engine.remote.codec import decoder, encode, presentable
from jaxserve.engine.remote.messages import (
    Add,
    Answer,
    Farewell,
    FromEngine,
    Turned,
    decode_from_engine,
    decode_from_frontend,
)
from jaxserve.errors import DeadlineError, ErrorCode, InternalError, JaxserveError, QueueFullError
from jaxserve.metrics.timeline import TimelineWindow
from jaxserve.metrics.turn import Turn
from jaxserve.sampling.params import SamplingParams
from jaxserve.sampling.response import ResponseParams
from jaxserve.sampling.structured import StructuredOutputsParams
from jaxserve.scheduler.request import EngineRequest, PackedLogprobs, Sibling, Update
from jaxserve.step.plan import LogprobRows
from jaxserve.types import FinishReason, ServiceClass

tokens = st.integers(0, 2**31 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
forms = st.builds(StructuredOutputsParams, choice=st.lists(texts, min_size=1, max_size=3), json=st.none()) | st.just(
    StructuredOutputsParams(json_object=True, whitespace_pattern=" ?")
)
responses = st.builds(
    ResponseParams,
    template=texts.map("{}".__add__),
    thinking=st.sampled_from(["none", "maybe", "open"]),
    max_thinking_tokens=st.none() | st.integers(0, 2**31 - 1),
    tools=texts.map("[]".__add__),
    required=st.booleans(),
    parallel=st.booleans(),
    content=st.none() | forms,
)
params = st.builds(
    SamplingParams,
    structured_outputs=st.none() | forms | responses,
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


siblings = st.lists(st.builds(Sibling, id=st.text(max_size=3).filter(str.isascii), seed=st.integers(0, 2**64 - 1)), max_size=3)


@settings(max_examples=40, deadline=None)
@given(requests, siblings)
def test_requests(first: EngineRequest, others: list[Sibling]) -> None:
    given = first.with_siblings(others)
    message = decode_from_frontend(encode(Add.of(given)))
    assert isinstance(message, Add)
    assert message.requests == given
    assert message.ids == [one.id for one in given]


def test_the_prompt_of_many_sequences_is_sent_once_and_kept_once() -> None:
    limits = IntakeLimits(100_000, 1000, frozenset({1}), 8, seed=0, strict=True)
    budgets = Budgets(Policies(), ServiceClass.BATCH, num_pages=10_000, page_size=16)
    intake = Intake(None, limits, CacheNamespace("model", "float32", ""), budgets)
    prompt = [900] * 20_000  # each takes three bytes
    sizes = []
    for n in (1, 8):
        params = SamplingParams(n=n, max_tokens=4, prompt_logprobs=2, prompt_logprobs_start=5)
        given = intake.prepare({"prompt_token_ids": prompt}, params, "name", 0.0)
        content = encode(Add.of(given))
        sizes.append(len(content))
        message = decode_from_frontend(content)
        assert isinstance(message, Add)
        found = message.requests
        assert found == given
        assert [one.params.prompt_logprobs for one in found] == [2] + [None] * (n - 1)
        assert [one.parent for one in found] == [None] + [given[0].id] * (n - 1)
        assert all(one.prompt is found[0].prompt for one in found)
    assert 60_000 < sizes[0] < sizes[1] < sizes[0] + 8 * 40


def test_stop_strings_stay_with_the_front_end() -> None:
    """Who makes the text watches for them, and they need be no UTF-8."""
    request = EngineRequest("a", (5,), SamplingParams(stop=("\ud800",)), 3, 0, frozenset(), b"", 0.0)
    message = decode_from_frontend(encode(Add.of([request])))
    assert isinstance(message, Add)
    assert message.requests == [replace(request, params=replace(request.params, stop=()))]


def rows(first: int, count: int, columns: int = 3) -> LogprobRows:
    numbers = np.arange(first, first + count)
    tops = numbers[:, None] * 10 + np.arange(columns)
    return LogprobRows(
        (-numbers / 8).astype(np.float32), numbers.astype(np.int32), tops.astype(np.int32), (-tops / 16).astype(np.float32)
    )


def sent(message: FromEngine) -> FromEngine:
    return decode_from_engine(encode(message))


def roundtrip(*updates: Update) -> list[Update]:
    message = sent(Turned(1.5, EngineLoad(running=3), updates))
    assert isinstance(message, Turned)
    assert (message.heartbeat, message.load, list(message.refusals)) == (1.5, EngineLoad(running=3), [])
    return list(message.updates)


def test_updates_arrive_as_the_scheduler_made_them() -> None:
    packed = PackedLogprobs.of(rows(3, 5, columns=20))
    given = [
        Update("a", 5),
        Update("b", 6, num_cached=16, queue_time=0.25),
        Update("c", 7, finish_reason=FinishReason.STOP, matched=7),
        Update("d", finish_reason=FinishReason.ABORT),
        Update("e", 8, logprobs=packed.row(2)),
        Update("f", prompt_logprobs=packed),
    ]
    assert roundtrip(*given) == given


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(0, 20))
def test_log_probabilities_are_packed_row_by_row(count: int, columns: int) -> None:
    given = rows(3, count, columns)
    packed = PackedLogprobs.of(given)
    for name in ("chosen", "rank", "top_ids", "top"):
        np.testing.assert_array_equal(getattr(packed.rows, name), getattr(given, name))
    for place in range(count):
        (found,) = roundtrip(Update("a", 1, logprobs=packed.row(place)))
        assert found.logprobs is not None
        chosen, rank, ids, top = found.logprobs.first(7)
        assert (chosen, rank) == (given.chosen[place], given.rank[place])
        assert (ids, top) == (given.top_ids[place, :7].tolist(), given.top[place, :7].tolist())
        assert len(found.logprobs.rows.rank) == 1, "nobody else's row is sent"


def test_rows_of_a_wider_array_and_of_other_widths_are_packed_as_what_they_are() -> None:
    """As they come from a device: columns of one packed array."""
    wide = np.arange(60, dtype=np.int32).reshape(5, 12)
    given = LogprobRows(wide.view(np.float32)[:, 1], wide[:, 2], wide[:, 3:6], wide.view(np.float32)[:, 7:10])
    found = PackedLogprobs.of(given).rows
    for name in ("chosen", "rank", "top_ids", "top"):
        np.testing.assert_array_equal(getattr(found, name), getattr(given, name))


def test_refusals_and_failures_keep_class_field_and_hint() -> None:
    refusal = Refusal(("a", "b"), QueueFullError("full", retry_after=2.5))
    failure = Update("c", error=DeadlineError("late", param="timeout"))
    found = sent(Turned(1.5, EngineLoad(), [failure], [refusal]))
    assert isinstance(found, Turned)
    refused, failed = found.refusals[0], found.updates[0]
    assert (refused.ids, type(refused.error), refused.error.retry_after) == (("a", "b"), QueueFullError, 2.5)
    assert failed.error is not None
    assert (type(failed.error), failed.error.message, failed.error.param) == (DeadlineError, "late", "timeout")


def resent(error: BaseException) -> JaxserveError:
    message = sent(Farewell(presentable(error)))
    assert isinstance(message, Farewell)
    return message.error


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_has_a_class_that_comes_back(code: ErrorCode) -> None:
    kind = next(kind for kind in every_error() if kind.code is code)
    error = resent(kind("message", param="field", retry_after=1.0))
    assert (error.code, error.message, error.param, error.retry_after) == (code, "message", "field", 1.0)
    assert type(error) is (InternalError if code is ErrorCode.INTERNAL else kind)


def every_error() -> list[type[JaxserveError]]:
    found: list[type[JaxserveError]] = [JaxserveError]
    for kind in found:
        found += kind.__subclasses__()
    return found[1:]


def test_what_is_no_error_of_ours_is_an_internal_one() -> None:
    error = resent(RuntimeError("a bug"))
    assert isinstance(error, InternalError)
    assert "a bug" in error.message


@pytest.mark.parametrize("result", [None, TimelineWindow(1.0, 2.0, 3.0, 40, [Turn(1.0, step=3)], [])])
def test_answers(result: TimelineWindow | None) -> None:
    """As what the call is answered by."""
    answer = sent(Answer(3, msgspec.Raw(encode(result))))
    assert isinstance(answer, Answer)
    call = Flush() if result is None else Trace(1.0)
    assert decoder(answer_type(call)).decode(answer.result) == result


BAD_ERROR = encode(["farewell", ["no such code", "", None, None]])


@pytest.mark.parametrize("content", [b"\xc1", b"", BAD_ERROR, encode(["nonsense", 1])])
def test_what_is_no_message_is_an_error(content: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_from_engine(content)
    with pytest.raises(msgspec.DecodeError):
        decode_from_frontend(content)


@pytest.mark.parametrize("value", [object(), np.zeros(2), ValueError("not ours")])
def test_what_no_message_holds_is_not_sent(value: object) -> None:
    with pytest.raises(NotImplementedError, match="cannot be sent"):
        encode(value)
