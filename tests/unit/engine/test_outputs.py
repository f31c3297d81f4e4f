"""From updates to events: text, stop strings, log-probabilities, usage and times."""

from typing import cast

import numpy as np
import pytest

from jaxserve.cache.prefix_hash import CacheNamespace
from jaxserve.clock import VirtualClock
from jaxserve.config.policies import Policies
from jaxserve.engine.budgets import Budgets
from jaxserve.engine.events import Delta, Finished, Started, Timing, Usage
from jaxserve.engine.intake import Intake, IntakeLimits
from jaxserve.engine.outputs import RequestOutputs
from jaxserve.errors import DeadlineError, InternalError
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.request import PackedLogprobs, Update
from jaxserve.step.plan import LogprobRows
from jaxserve.types import FinishReason, ServiceClass
from tests.support.broken_tokenizer import BrokenTokenizer

BUDGETS = Budgets(Policies(), ServiceClass.BATCH, num_pages=100, page_size=4)
EOS = 1
PROMPT = "ask"


class Sample:
    """One request's outputs, fed token by token."""

    def __init__(self, tokenizer, prompt=PROMPT, **params):
        self.tokenizer = tokenizer
        self.clock = VirtualClock()
        limits = IntakeLimits(
            max_model_len=100, vocab_size=260, eos_token_ids=frozenset({EOS}), max_sequences=8, seed=0, strict=True
        )
        intake = Intake(tokenizer, limits, CacheNamespace("m", "float32", "r"), BUDGETS)
        self.requests = intake.prepare(prompt, SamplingParams(**params), "name", self.clock.now())
        self.outputs = RequestOutputs("name", self.requests, tokenizer, self.clock)
        self.events = []
        self.end = []

    def push(self, token=None, *, index=0, **update):
        pushed = self.outputs.push(Update(self.requests[index].id, token, **update))
        self.events += pushed.events
        self.end += pushed.end
        return pushed.events

    def say(self, text, *, index=0, finish_reason=None, matched=None):
        """Push a text's tokens; the last ends the sequence if a reason is given."""
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        for place, token in enumerate(ids):
            last = {"finish_reason": finish_reason, "matched": matched} if place == len(ids) - 1 else {}
            self.push(token, index=index, **last)

    def text(self, index=0):
        return "".join(event.text for event in self.events if isinstance(event, Delta) and event.index == index)

    def finished(self):
        return [event for event in self.events if isinstance(event, Finished)]


def logprob_rows(rows):
    """Rows of (chosen's logprob, its rank, {token: logprob})."""
    chosen, rank, tops = zip(*rows, strict=True)
    ids = np.array([list(top) for top in tops], np.int32)
    values = np.array([list(top.values()) for top in tops], np.float32)
    return PackedLogprobs.of(LogprobRows(np.array(chosen, np.float32), np.array(rank, np.int32), ids, values))


def test_events_in_order(tokenizer):
    sample = Sample(tokenizer)
    sample.push(tokenizer.encode("h", add_special_tokens=False)[0], num_cached=2, queue_time=0.5)
    sample.say("i", finish_reason=FinishReason.LENGTH)
    started, first, second, finished = sample.events
    assert started == Started("name", tuple(tokenizer.encode(PROMPT)), 2, 0.5, None)
    assert (first.text, first.first_token_index, first.index, first.logprobs) == ("h", 0, 0, None)
    assert (second.text, second.first_token_index) == ("i", 1)
    assert (finished.finish_reason, finished.matched) == (FinishReason.LENGTH, None)
    assert finished.usage == Usage(len(tokenizer.encode(PROMPT)), 2, 2)
    assert sample.outputs.done


def test_a_character_of_several_tokens_comes_whole(tokenizer):
    sample = Sample(tokenizer)
    sample.say("aé€")
    assert [event.text for event in sample.events[1:]] == ["a", "", "é", "", "", "€"]


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.STOP])
def test_an_incomplete_character_is_not_lost_at_the_end(tokenizer, reason):
    sample = Sample(tokenizer)
    lead = tokenizer.encode("é", add_special_tokens=False)[0]
    sample.push(lead)
    sample.push(EOS if reason is FinishReason.STOP else lead, finish_reason=reason)
    assert sample.text() == ("\ufffd" if reason is FinishReason.STOP else "\ufffd\ufffd")


def test_a_stop_string_across_tokens(tokenizer):
    sample = Sample(tokenizer, stop=["END", "never"])
    sample.say("xEENDmore")
    assert sample.text() == "xE"
    (finished,) = sample.finished()
    assert (finished.finish_reason, finished.matched) == (FinishReason.STOP, "END")
    assert finished.usage.completion_tokens == 5
    assert sample.end == [sample.requests[0].id], "the engine is told once"
    assert isinstance(sample.events[-1], Finished), "tokens after the end give nothing"


def test_text_that_could_become_a_stop_string_is_held_back(tokenizer):
    sample = Sample(tokenizer, stop="END")
    sample.say("aENb")
    assert [event.text for event in sample.events[1:]] == ["a", "", "", "ENb"]
    sample.say("EN", finish_reason=FinishReason.LENGTH)
    assert sample.text() == "aENbEN", "at the end, what was held back comes out"
    assert sample.finished()[0].finish_reason is FinishReason.LENGTH


def test_a_stop_string_may_be_kept(tokenizer):
    sample = Sample(tokenizer, stop="END", include_stop_str_in_output=True)
    sample.say("aENDb")
    assert sample.text() == "aEND"


def test_a_stop_string_on_the_last_token_is_the_reason(tokenizer):
    sample = Sample(tokenizer, stop="END")
    sample.say("aEND", finish_reason=FinishReason.LENGTH)
    (finished,) = sample.finished()
    assert (finished.finish_reason, finished.matched, sample.text()) == (FinishReason.STOP, "END", "a")
    assert sample.end == [], "the engine ended it by itself"


def test_stop_strings_wait_for_min_tokens(tokenizer):
    sample = Sample(tokenizer, stop="b", min_tokens=3)
    sample.say("abcabc")
    assert sample.text() == "abca"
    assert sample.finished()[0].usage.completion_tokens == 5


@pytest.mark.parametrize(("include", "text"), [(False, "a"), (True, "aZ")])
def test_a_stop_tokens_text(tokenizer, include, text):
    (z,) = tokenizer.encode("Z", add_special_tokens=False)
    sample = Sample(tokenizer, stop_token_ids=[z], include_stop_str_in_output=include)
    sample.say("aZ", finish_reason=FinishReason.STOP, matched=z)
    assert sample.text() == text
    assert sample.events[-2].token_ids == (z,), "the token itself is told in any case"
    assert sample.finished()[0].matched == z
    assert sample.finished()[0].usage.completion_tokens == 2


@pytest.mark.parametrize(("skip", "include", "text"), [(True, True, "a"), (False, True, "a</s>"), (False, False, "a")])
def test_end_of_sequence(tokenizer, skip, include, text):
    sample = Sample(tokenizer, skip_special_tokens=skip, include_stop_str_in_output=include)
    sample.say("a")
    sample.push(EOS, finish_reason=FinishReason.STOP)
    assert sample.text() == text
    assert (sample.finished()[0].finish_reason, sample.finished()[0].matched) == (FinishReason.STOP, None)


@pytest.mark.parametrize(("skip", "text"), [(True, "ab"), (False, "a</s>b")])
def test_special_tokens_within_the_text(tokenizer, skip, text):
    sample = Sample(tokenizer, ignore_eos=True, skip_special_tokens=skip)
    sample.say("a")
    sample.push(EOS)
    sample.say("b", finish_reason=FinishReason.LENGTH)
    assert sample.text() == text


def test_times(tokenizer):
    sample = Sample(tokenizer)
    sample.clock.advance(1.0)
    sample.push(10, queue_time=0.25)
    sample.clock.advance(2.0)
    sample.push(11, finish_reason=FinishReason.LENGTH, queue_time=0.25)
    assert sample.finished()[0].timing == Timing(queue=0.25, first_token=1.0, total=3.0)


def test_logprobs(tokenizer):
    sample = Sample(tokenizer, logprobs=2)
    a, b, c = tokenizer.encode("abc", add_special_tokens=False)
    rows = logprob_rows([(-9.0, 9, {c: -1.0, b: -2.0, a: -3.0}), (-3.0, 3, {b: -0.5, c: -1.5, a: -3.0})])
    (_, delta) = sample.outputs.push(Update(sample.requests[0].id, a, logprobs=rows.row(1))).events
    assert isinstance(delta, Delta)
    assert delta.logprobs is not None
    (position,) = delta.logprobs
    chosen = position.chosen
    assert (chosen.token_id, chosen.logprob, chosen.rank, chosen.text, chosen.raw) == (a, -3.0, 3, "a", b"a")
    assert [(top.token_id, top.logprob, top.rank, top.text) for top in position.top] == [(b, -0.5, 1, "b"), (c, -1.5, 2, "c")]


def test_logprobs_of_bytes_and_special_tokens(tokenizer):
    sample = Sample(tokenizer, logprobs=1)
    lead = tokenizer.encode("é", add_special_tokens=False)[0]
    rows = logprob_rows([(-1.0, 1, {EOS: -2.0})])
    (_, delta) = sample.outputs.push(Update(sample.requests[0].id, lead, logprobs=rows)).events
    assert isinstance(delta, Delta)
    assert delta.logprobs is not None
    (position,) = delta.logprobs
    assert (position.chosen.raw, position.chosen.text) == (b"\xc3", "\ufffd")
    assert (position.top[0].raw, position.top[0].text) == (b"</s>", "</s>")


def scores(prompt, start, stop):
    """Log-probabilities of prompt tokens start:stop, each its negative position."""
    return logprob_rows([(-float(place), place, {place: -0.5, 7: -1.0}) for place in range(start, stop)])


def test_prompt_logprobs_come_with_started(tokenizer):
    sample = Sample(tokenizer, prompt={"prompt_token_ids": [10, 11, 12, 13, 14]}, prompt_logprobs=1)
    assert sample.push(prompt_logprobs=scores(5, 1, 3)) == []
    assert sample.push(prompt_logprobs=scores(5, 3, 4)) == []
    started, _ = sample.push(20, prompt_logprobs=scores(5, 4, 5))
    first, *rest = started.prompt_logprobs
    assert first is None
    assert [(entry.chosen.token_id, entry.chosen.logprob, entry.chosen.rank) for entry in rest] == [
        (10 + place, -place, place) for place in range(1, 5)
    ]
    assert [[top.token_id for top in entry.top] for entry in rest] == [[1], [2], [3], [4]]


def test_prompt_logprobs_of_one_token(tokenizer):
    sample = Sample(tokenizer, prompt={"prompt_token_ids": [10]}, prompt_logprobs=1)
    assert sample.push(20)[0].prompt_logprobs == (None,)


def test_prompt_logprobs_from_a_position_on(tokenizer):
    sample = Sample(tokenizer, prompt={"prompt_token_ids": [10, 11, 12, 13]}, prompt_logprobs=1, prompt_logprobs_start=2)
    started, _ = sample.push(20, prompt_logprobs=scores(4, 2, 4))
    assert [entry and (entry.chosen.token_id, entry.chosen.rank) for entry in started.prompt_logprobs] == [
        None,
        None,
        (12, 2),
        (13, 3),
    ]


def test_a_prompt_that_is_only_scored(tokenizer):
    prompt = [10, 11, 12]
    sample = Sample(tokenizer, prompt={"prompt_token_ids": prompt}, prompt_logprobs=0, max_tokens=0, logprobs=1)
    assert sample.push(prompt_logprobs=scores(3, 1, 2)) == []
    end = {"finish_reason": FinishReason.LENGTH, "num_cached": 1, "queue_time": 0.5}
    started, finished = sample.push(prompt_logprobs=scores(3, 2, 3), **end)
    assert (started.prompt_token_ids, started.cached_tokens, started.queue_time) == (tuple(prompt), 1, 0.5)
    assert [entry and entry.chosen.token_id for entry in started.prompt_logprobs] == [None, 11, 12]
    assert (finished.finish_reason, finished.matched) == (FinishReason.LENGTH, None)
    assert finished.usage == Usage(3, 0, 1)
    assert sample.outputs.done


def test_prompt_logprobs_are_complete_even_if_another_sequence_is_faster(tokenizer):
    """A prefix hit lets the other sequences sample before the first one has run the whole prompt to score it."""
    sample = Sample(tokenizer, prompt={"prompt_token_ids": [10, 11, 12]}, prompt_logprobs=0, n=2, stop="b")
    sample.push(prompt_logprobs=scores(3, 1, 2))
    assert sample.outputs.push(Update(sample.requests[1].id, 40)).events == []
    b = tokenizer.encode("b", add_special_tokens=False)[0]
    assert sample.outputs.push(Update(sample.requests[1].id, b)).events == []
    assert sample.outputs.push(Update(sample.requests[1].id, 41)).events == []
    events = sample.push(50, prompt_logprobs=scores(3, 2, 3))
    assert isinstance(events[0], Started)
    assert events[0].prompt_logprobs is not None
    assert [entry is not None for entry in events[0].prompt_logprobs] == [False, True, True]
    assert [type(event) for event in events[1:]] == [Delta, Delta, Finished, Delta]
    assert [event.index for event in events[1:]] == [1, 1, 1, 0]
    assert [event.first_token_index for event in events if isinstance(event, Delta)] == [0, 1, 0]


def test_sequences_are_told_apart(tokenizer):
    sample = Sample(tokenizer, n=3, stop="!")
    sample.say("aa", index=0)
    sample.say("bé", index=1)
    sample.say("c!", index=2)
    sample.say("d", index=0, finish_reason=FinishReason.LENGTH)
    assert [sample.text(index) for index in range(3)] == ["aad", "bé", "c"]
    assert sum(isinstance(event, Started) for event in sample.events) == 1
    assert [(event.index, event.usage.completion_tokens) for event in sample.finished()] == [(2, 2), (0, 3)]
    assert sample.end == [sample.requests[2].id]
    assert not sample.outputs.done
    assert sample.outputs.active_ids == [sample.requests[1].id]
    assert sample.outputs.ids == [request.id for request in sample.requests]


def test_abort_finishes_what_is_left(tokenizer):
    sample = Sample(tokenizer, n=3)
    sample.say("a", index=1, finish_reason=FinishReason.LENGTH)
    aborted = cast(list[Finished], sample.outputs.abort())
    assert [(event.index, event.finish_reason) for event in aborted] == [(0, FinishReason.ABORT), (2, FinishReason.ABORT)]
    assert sample.outputs.done
    assert sample.outputs.was_aborted
    assert sample.outputs.abort() == []
    assert sample.push(10) == []


def test_a_sequence_that_failed_ends_the_request(tokenizer):
    sample = Sample(tokenizer, n=3)
    sample.say("a", index=0, finish_reason=FinishReason.LENGTH)
    sample.say("b", index=1)
    error = DeadlineError("too late")
    ids = [request.id for request in sample.requests]
    pushed = sample.outputs.push(Update(ids[2], error=error))
    assert (pushed.error, pushed.events) == (error, [])
    assert ids[0] not in pushed.end
    assert ids[1] in pushed.end
    assert sample.outputs.error is error
    assert sample.outputs.done
    assert sample.outputs.started
    assert sample.push(10, index=1) == [], "what comes after the error is not told"
    assert sample.outputs.abort() == []


def test_an_error_of_a_sequence_that_has_ended_is_nothing(tokenizer):
    sample = Sample(tokenizer, n=2, stop="!")
    sample.say("c!", index=0)
    late = sample.outputs.push(Update(sample.requests[0].id, error=DeadlineError("too late")))
    assert (late.error, late.end) == (None, [])
    assert sample.outputs.error is None
    assert sample.outputs.active_ids == [sample.requests[1].id]


@pytest.mark.parametrize("params", [{}, {"logprobs": 1}])
def test_an_output_that_cannot_be_made_fails_its_request_alone(tokenizer, params, caplog):
    broken = BrokenTokenizer(tokenizer, 77)
    sample = Sample(broken, n=2, skip_special_tokens=False, **params)
    rows = {"logprobs": logprob_rows([(-1.0, 1, {5: -1.0})])} if params else {}
    assert len(sample.push(5, **rows)) == 2
    pushed = sample.outputs.push(Update(sample.requests[1].id, 77, **rows))
    assert isinstance(pushed.error, InternalError)
    assert "no such word" in pushed.error.message
    assert pushed.end == [request.id for request in sample.requests]
    assert sample.outputs.done
    assert "the output of request name could not be made" in caplog.text


def test_without_a_tokenizer_there_are_tokens_and_no_text():
    sample = Sample(None, prompt={"prompt_token_ids": [10, 11]}, logprobs=1)
    rows = logprob_rows([(-1.0, 1, {200: -1.0})])
    started, delta = sample.outputs.push(Update(sample.requests[0].id, 200, logprobs=rows)).events
    assert isinstance(started, Started)
    assert started.prompt_token_ids == (10, 11)
    assert isinstance(delta, Delta)
    assert (delta.text, delta.token_ids) == ("", (200,))
    assert delta.logprobs is not None
    assert (delta.logprobs[0].chosen.text, delta.logprobs[0].chosen.raw) == ("", b"")
    (_, finished) = sample.push(EOS, finish_reason=FinishReason.STOP)
    assert finished.usage.completion_tokens == 2


def test_a_token_that_the_tokenizer_does_not_know(tokenizer):
    """A model's embedding may have more rows than its tokenizer has tokens."""
    sample = Sample(tokenizer, logprobs=1)
    rows = logprob_rows([(-1.0, 1, {tokenizer.vocab_size: -1.0})])
    (_, delta) = sample.outputs.push(Update(sample.requests[0].id, tokenizer.vocab_size, logprobs=rows)).events
    assert isinstance(delta, Delta)
    assert delta.logprobs is not None
    assert (delta.text, delta.logprobs[0].chosen.text) == ("", "")


def test_the_end_says_how_often_another_engine_went_on(tokenizer):
    sample = Sample(tokenizer, n=2)
    sample.push(40)
    sample.push(41, resumed=2, finish_reason=FinishReason.LENGTH)
    sample.push(40, index=1, finish_reason=FinishReason.LENGTH)
    assert [end.resumed for end in sample.finished()] == [2, 0]


def test_the_end_of_a_sequence_says_how_often_it_went_on_in_another_engine(tokenizer):
    sample = Sample(tokenizer, n=2, stop=["!"])
    first, end = (tokenizer.encode(text, add_special_tokens=False)[0] for text in "h!")
    sample.push(first, index=0)
    sample.push(first, index=1)
    sample.push(first, index=0, resumed=1)
    sample.push(first, index=1, finish_reason=FinishReason.LENGTH)
    sample.push(end, index=0, resumed=2)
    assert [(event.index, event.matched, event.resumed) for event in sample.finished()] == [(1, None, 0), (0, "!", 2)]
