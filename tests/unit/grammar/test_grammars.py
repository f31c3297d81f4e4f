"""The grammars of an engine: order, sharing, giving up, and eviction."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from jaxserve.errors import InvalidRequestError, JaxserveError, OverloadedError
from jaxserve.grammar import grammars as module
from jaxserve.grammar.grammars import Grammars
from jaxserve.grammar.prepare import Form, prepare
from jaxserve.grammar.trials import Trial
from jaxserve.grammar.worker import WorkerSpec
from jaxserve.sampling.structured import StructuredOutputsParams
from tests.support.grammars import vocabulary

PATIENCE = 20.0


class HeldTrials:
    """Trials that wait until the test lets one go."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.error: JaxserveError | None = None
        self.is_wanted: Callable[[], bool] = lambda: True

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def run(self, form: Form, is_wanted: Callable[[], bool]) -> Trial:
        assert isinstance(form, StructuredOutputsParams)
        assert form.regex is not None
        self.order.append(form.regex)
        self.is_wanted = is_wanted
        self.begun.release()
        assert self.go_on.acquire(timeout=PATIENCE)
        if self.error is not None:
            raise self.error
        return Trial(prepare(form, vocabulary())[0], 2**20)


class Held(Grammars):
    def __init__(self) -> None:
        self.trials = HeldTrials()
        super().__init__(vocabulary().tokens.vocab_size, vocabulary)

    def _trials(self, vocabulary: object) -> HeldTrials:
        return self.trials


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    monkeypatch.setattr(module, "_num_workers", lambda: 1)
    return Held()


def form(regex: str) -> StructuredOutputsParams:
    return StructuredOutputsParams(regex=regex)


def test_tenants_take_turns_and_equal_forms_are_compiled_once(held: Held) -> None:
    first = held.compile(form("a"), "evil")
    assert held.trials.begun.acquire(timeout=PATIENCE)
    evil = [held.compile(form(f"e{place}"), "evil") for place in range(4)]
    good, shared = held.compile(form("g"), "good"), held.compile(form("e2"), "good")
    held.trials.go_on.release(9)
    for future in (first, *evil, good, shared):
        future.result(PATIENCE)
    assert shared is evil[2]
    assert held.trials.order == ["a", "e0", "g", "e1", "e2", "e3"]


def test_a_queued_form_that_nobody_waits_for_is_not_compiled(held: Held) -> None:
    held.compile(form("a"), "t")
    assert held.trials.begun.acquire(timeout=PATIENCE)
    gone, both = held.compile(form("gone"), "t"), held.compile(form("both"), "t")
    held.compile(form("both"), "u")
    held.release(form("gone"), "t")
    held.release(form("both"), "t")
    assert gone.cancelled()
    held.trials.go_on.release(9)
    both.result(PATIENCE)
    assert held.trials.order == ["a", "both"]


def test_a_running_form_is_given_up_after_a_grace(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.0)
    held.compile(form("a"), "t")
    assert held.trials.begun.acquire(timeout=PATIENCE)
    assert held.trials.is_wanted()
    held.release(form("a"), "t")
    assert not held.trials.is_wanted()
    again = held.compile(form("a"), "t")  # is another job
    held.trials.go_on.release(2)
    again.result(PATIENCE)
    assert held.trials.order == ["a", "a"]


def test_failures_of_the_worker_are_tried_again_and_faults_of_the_grammar_are_not(held: Held) -> None:
    held.trials.go_on.release(9)
    held.trials.error = OverloadedError("no worker")
    assert isinstance(held.compile(form("a"), "t").exception(PATIENCE), OverloadedError)
    held.release(form("a"), "t")
    held.trials.error = InvalidRequestError("no grammar", param="structured_outputs.regex")
    for _ in range(2):
        assert isinstance(held.compile(form("a"), "t").exception(PATIENCE), InvalidRequestError)
        held.release(form("a"), "t")
    assert held.trials.order == ["a", "a"]


def test_kept_grammars_are_bounded_in_bytes_but_those_waited_for_stay(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", 2 * 2**20)
    held.trials.go_on.release(99)
    pinned = held.compile(form("p"), "t")
    for place in range(5):
        held.compile(form(f"k{place}"), "t").result(PATIENCE)
        held.release(form(f"k{place}"), "t")
    assert held.compile(form("p"), "t") is pinned
    assert held.trials.order == ["p", "k0", "k1", "k2", "k3", "k4"]
    held.compile(form("k4"), "t").result(PATIENCE)
    held.compile(form("k0"), "t").result(PATIENCE)
    assert held.trials.order[6:] == ["k0"]


def test_a_closed_engine_compiles_nothing(held: Held) -> None:
    held.close()
    with pytest.raises(JaxserveError, match="ended"):
        held.compile(form("a"), "t").result(PATIENCE)


def test_a_vocabulary_without_an_end_is_an_error_that_names_the_field() -> None:
    def read() -> None:
        raise InvalidRequestError("needs an end-of-sequence token", param="structured_outputs")

    one = Grammars(32, read, WorkerSpec("nowhere", 32, ()))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="end-of-sequence"):
        one.constraints(form("a"))
