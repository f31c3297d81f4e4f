"""An exception while one request is processed ends that request; the others get the tokens that they would have had."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from jaxserve.cache.kv_cache import KVCache
from jaxserve.clock import RealClock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.engine.core import EngineCore
from jaxserve.engine.link import EngineLoad
from jaxserve.engine.loop import EngineLoop, Refusal, TurnOutcome
from jaxserve.engine.remote.codec import encode
from jaxserve.engine.remote.messages import Add, Turned, decode_from_engine, decode_from_frontend
from jaxserve.errors import EngineKilledError, ErrorCode, InternalError, InvalidRequestError, JaxserveError, brief, contained
from jaxserve.sampling.params import SamplingParams
from jaxserve.sampling.structured import StructuredOutputsParams
from jaxserve.scheduler import planner
from jaxserve.scheduler.request import EngineRequest, Sequence, Sibling, Update
from jaxserve.scheduler.scheduler import Scheduler
from server.errors import OUTCOMES
from tests.support.hash_executor import VOCAB, HashExecutor, expected
from tests.support.scripted_grammars import ScriptedConstraint, ScriptedGrammars, params_of

PAGES, PAGE, ROWS, CONTEXT, TOKENS = 41, 4, 4, 64, 8
PROMPTS = {"a": (5, 6, 7), "victim": (9, 9, 3, 1, 4), "c": (5, 6, 7, 8, 9)}
FAILURES = (RecursionError("deep"), OverflowError("large"), UnicodeError("half"), MemoryError(), KeyError("x"), Exception())


class PanicException(BaseException):
    """As PyO3 raises for a panic in Rust."""


class Free(ScriptedConstraint):
    """Allows everything."""

    def __init__(self) -> None:
        super().__init__(0)

    def allowed(self, said: Any) -> list[int]:
        return list(range(VOCAB))

    def accept(self, token: int) -> bool:
        return True

    def forced(self) -> list[int]:
        return []


class Grammars(ScriptedGrammars):
    """All constraints allow everything."""

    def __init__(self) -> None:
        self.make: Callable[[], ScriptedConstraint] = Free

    def constraints(self, params: StructuredOutputsParams) -> Callable[[], ScriptedConstraint]:  # type: ignore[override]
        return self.make


class Engine:
    """A core over a hash executor, and what it said of each sequence."""

    def __init__(self, *, overlap: bool = True) -> None:
        self.grammars = Grammars()
        self.cache = KVCache(PAGES, PAGE, prefix_caching=True)
        config = SchedulerConfig(max_num_seqs=ROWS, max_num_batched_tokens=16, itl_target_ms=0.0)
        masker = cast(Any, self.grammars)
        self.scheduler = Scheduler(config, self.cache, CONTEXT, RealClock(), masker=masker)
        executor = HashExecutor(PAGES, PAGE, ROWS, CONTEXT)
        self.core = EngineCore(self.scheduler, executor, overlap=overlap, grammars=cast(Any, self.grammars))
        self.tokens: dict[str, list[int]] = {}
        self.errors: dict[str, JaxserveError] = {}

    def request(self, name: str, **params: Any) -> EngineRequest:
        return EngineRequest(
            name, PROMPTS[name], SamplingParams(max_tokens=TOKENS, **params), TOKENS, 0, frozenset(), b"root", 0.0
        )

    def run(self) -> None:
        while self.core.has_work:
            self.take(self.core.step())
            self.scheduler.check()

    def take(self, updates: list[Update]) -> None:
        for update in updates:
            if update.token is not None:
                self.tokens.setdefault(update.id, []).append(update.token)
            if update.error is not None:
                assert update.id not in self.errors, "a request fails once"
                self.errors[update.id] = update.error

    def assert_only_the_victim_failed(self, phase: str) -> None:
        assert self.errors.keys() == {"victim"}
        assert isinstance(self.errors["victim"], InternalError)
        assert phase in self.errors["victim"].message
        for name in ("a", "c"):
            assert self.tokens[name] == expected(list(PROMPTS[name]), TOKENS)
        self.scheduler.check()
        assert self.cache.num_free == self.cache.num_usable
        assert not self.scheduler.sequences


def raising(error: BaseException, *, on: Callable[..., bool], function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, but it raises for some arguments."""

    def wrapped(*args: Any, **more: Any) -> Any:
        if on(*args):
            raise error
        return function(*args, **more)

    return wrapped


def test_who_keeps_a_sequence_that_ended_keeps_no_grammar() -> None:
    """The record of the last steps keeps it, and a compiled grammar may take megabytes."""
    engine = Engine()
    engine.core.add([engine.request("a", structured_outputs=StructuredOutputsParams(regex="x"))])
    kept = engine.scheduler.sequences["a"]
    assert kept.constraint is not None
    engine.run()
    assert len(engine.tokens["a"]) == TOKENS
    assert kept.constraint is None


class Faulty(Free):
    """A constraint whose methods raise from its second token on."""

    def __init__(self, method: str, error: BaseException) -> None:
        super().__init__()
        self._method, self._error, self._number = method, error, 0

    def accept(self, token: int) -> bool:
        self._number += 1
        self.check("accept")
        return True

    def check(self, method: str) -> None:
        if method == self._method and self._number >= 2:
            raise self._error

    def now_allowed(self) -> list[int]:
        self.check("mask")
        if self._method == "forced":
            return [1]
        return super().now_allowed()

    def forced(self) -> list[int]:
        self.check("forced")
        return []


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("error", [*FAILURES, PanicException("rust")], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("method", ["mask", "accept", "forced"])
def test_a_constraint_that_raises_fails_its_request_alone(method: str, error: BaseException, overlap: bool) -> None:
    engine = Engine(overlap=overlap)
    for name in PROMPTS:
        engine.grammars.make = (lambda: Faulty(method, error)) if name == "victim" else Free
        engine.core.add([engine.request(name, structured_outputs=params_of(0))])
    engine.run()
    engine.assert_only_the_victim_failed("reading its result" if method == "accept" else "computing its mask")


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("name", "params"), [("_row_starts", {}), ("_readout", {"prompt_logprobs": 1})])
def test_a_row_that_cannot_be_planned_fails_its_request_alone(
    monkeypatch: pytest.MonkeyPatch, name: str, params: dict[str, Any], overlap: bool
) -> None:
    def is_victim(*arguments: Any) -> bool:
        return any(isinstance(one, Sequence) and one.request.id == "victim" for one in arguments)

    monkeypatch.setattr(planner, name, raising(OverflowError("x"), on=is_victim, function=getattr(planner, name)))
    engine = Engine(overlap=overlap)
    for one in PROMPTS:
        engine.core.add([engine.request(one, **(params if one == "victim" else {}))])
    engine.run()
    engine.assert_only_the_victim_failed("planning")


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_a_result_that_cannot_be_read_fails_its_request_alone(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    engine = Engine()
    append = engine.scheduler._append

    def is_victim(sequence: Sequence, token: int) -> bool:
        return sequence.request.id == "victim" and sequence.num_output == 3

    monkeypatch.setattr(engine.scheduler, "_append", raising(error, on=is_victim, function=append))
    engine.core.add([engine.request("a")])
    engine.core.add([engine.request("victim")])
    engine.core.add([engine.request("c")])
    engine.run()
    engine.assert_only_the_victim_failed("reading its result")
    assert engine.tokens["victim"] == expected(list(PROMPTS["victim"]), 3), "tokens before the failure are delivered"


def test_a_broken_invariant_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that the failure leaked may be written by two sequences later."""
    engine = Engine()

    def leak(sequence: Any, token: int) -> None:
        sequence.pages.pages.pop()
        raise KeyError("half done")

    monkeypatch.setattr(engine.scheduler, "_append", leak)
    engine.core.add([engine.request("a")])
    with pytest.raises(AssertionError):
        engine.run()
    assert engine.core.death is not None


def test_options_that_do_not_fit_are_refused_before_they_are_queued() -> None:
    engine = Engine()
    engine.core.add([engine.request("a")])
    engine.core.add([engine.request("c")])
    victim = engine.request("victim")
    object.__setattr__(victim.params, "top_k", 10**30)
    with pytest.raises(OverflowError):
        engine.core.add([victim])
    engine.scheduler.check()
    engine.run()
    assert engine.tokens["a"] == expected(list(PROMPTS["a"]), TOKENS)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_group_that_cannot_be_queued_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    engine = Engine()
    first = engine.request("victim")
    group = first.with_siblings([Sibling(f"s{place}", place) for place in range(2)])
    calls = iter(range(3))
    remaining = engine.scheduler.lengths.remaining
    monkeypatch.setattr(
        engine.scheduler.lengths, "remaining", raising(OverflowError(), on=lambda *_: next(calls) == number, function=remaining)
    )
    with pytest.raises(OverflowError):
        engine.core.add(group)
    monkeypatch.undo()
    engine.scheduler.check()
    assert not engine.core.has_work
    engine.core.add([engine.request("a")])
    engine.run()
    assert engine.tokens["a"] == expected(list(PROMPTS["a"]), TOKENS)


def outcomes_of(engine: Engine, *adds: list[EngineRequest]) -> tuple[list[TurnOutcome], list[BaseException]]:
    """What a loop says of requests until all are done, and the deaths of it."""
    said: list[TurnOutcome] = []
    deaths: list[BaseException] = []
    loop = EngineLoop(engine.core, said.extend, deaths.append)
    for requests in adds:
        loop.add(requests)
    loop.start()
    loop.call(lambda core: None).result(20)
    while engine.core.has_work and not deaths:
        loop.call(lambda core: None).result(20)
    loop.stop()
    return said, deaths


@pytest.mark.parametrize("error", [*FAILURES, PanicException("rust")], ids=lambda error: type(error).__name__)
def test_the_loop_refuses_a_request_whose_intake_raises(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    engine = Engine()

    def is_victim(requests: list[EngineRequest]) -> bool:
        return requests[0].id == "victim"

    monkeypatch.setattr(engine.core, "prepare", raising(error, on=is_victim, function=engine.core.prepare))
    said, deaths = outcomes_of(engine, *([engine.request(name)] for name in PROMPTS))
    assert not deaths
    (refusal,) = [one for one in said if isinstance(one, Refusal)]
    assert refusal.ids == ("victim",)
    assert "its intake" in refusal.error.message
    assert decode_from_engine(encode(Turned(0.0, EngineLoad(), (), [refusal])))
    engine.take([one for one in said if not isinstance(one, Refusal)])
    assert engine.tokens == {name: expected(list(PROMPTS[name]), TOKENS) for name in ("a", "c")}


class BrokenObserver:
    """Raises the given errors."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        def fails(*_: Any) -> None:
            raise OSError("disk full")

        return fails


def test_what_watches_the_engine_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine()
    engine.core.observer = cast(Any, BrokenObserver())
    engine.core._dumper = cast(Any, BrokenObserver())
    engine.cache.prefixes.follow(lambda events: 1 // 0)  # type: ignore[arg-type, return-value]
    with caplog.at_level(logging.ERROR):
        said, deaths = outcomes_of(engine, [engine.request("a")])
    assert not deaths
    engine.take(cast(Any, said))
    assert engine.tokens["a"] == expected(list(PROMPTS["a"]), TOKENS)
    assert sum("later failures" in record.message for record in caplog.records) == 3, "each of them is logged once"


def test_a_request_that_cannot_be_decoded_names_its_sequences() -> None:
    engine = Engine()
    good = decode_from_frontend(encode(Add.of([engine.request("a")])))
    assert isinstance(good, Add)
    assert [one.id for one in good.requests] == good.ids == ["a"]
    bad = decode_from_frontend(encode(Add(["b", "c"], msgspec.Raw(encode(["no request"])))))
    assert isinstance(bad, Add)
    assert bad.ids == ["b", "c"]
    with pytest.raises(msgspec.DecodeError):
        _ = bad.requests


def test_errors_can_always_be_encoded() -> None:
    for error in (InvalidRequestError("half \ud800", param="\udfff"), contained(UnicodeError("\ud800"), "x")):
        assert encode(Refusal(("a",), error))
    assert brief(ValueError(10**5000)) == "ValueError", "its repr raises"
    assert len(brief(ValueError("x" * 10**6))) < 400


def test_every_request_error_has_a_status() -> None:
    assert OUTCOMES[ErrorCode.INTERNAL].http == OUTCOMES[EngineKilledError.code].http == 500
    assert not OUTCOMES[EngineKilledError.code].retryable
