"""Grammars in a worker process: each limit is a named error, and the next grammar passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from jaxserve.engine.preparation import model_directory
from jaxserve.errors import CancelledRequestError, InvalidRequestError, OverloadedError
from jaxserve.grammar.prepare import Form, compile_prepared
from jaxserve.grammar.trials import WorkerTrials
from jaxserve.grammar.worker import WorkerSpec
from jaxserve.sampling.response import ResponseParams
from jaxserve.sampling.structured import StructuredOutputsParams
from tests.support.grammars import END, accepts, vocabulary

CPU = 0.4
PATTERNS = [f".*a.{{{k}}}b.*" for k in range(30)]  # that all hold: minutes, and gigabytes
SLOW = {"type": "string", "allOf": [{"pattern": pattern} for pattern in PATTERNS]}
LARK = "start: X\nX: " + " & ".join(f"/{pattern}/" for pattern in PATTERNS)


@pytest.fixture(scope="module")
def trials() -> Iterator[WorkerTrials]:
    spec = WorkerSpec(str(model_directory("pico")), 1024, (END,), cpu_seconds=CPU)
    trials = WorkerTrials(spec)
    trials.start()
    yield trials
    trials.close()


def check(trials: WorkerTrials, form: Form, wanted: Callable[[], bool] = lambda: True) -> None:
    trials.run(form, wanted)


def check_next(trials: WorkerTrials) -> None:
    """The worker goes on, with a grammar that is what it would be here."""
    form = StructuredOutputsParams(json={"type": "integer"})
    compiled = compile_prepared(trials.run(form, lambda: True).prepared, form.param, vocabulary())
    assert accepts(compiled.matcher, "17")
    assert not accepts(compiled.matcher, "x")


@pytest.mark.parametrize(
    ("form", "param"),
    [
        (StructuredOutputsParams(json=SLOW), "structured_outputs.json"),
        (StructuredOutputsParams(grammar=LARK), "structured_outputs.grammar"),
        (
            StructuredOutputsParams(
                structural_tag={"type": "structural_tag", "format": {"type": "json_schema", "json_schema": SLOW}}
            ),
            "structured_outputs.structural_tag",
        ),
    ],
    ids=["json", "grammar", "structural_tag"],
)
def test_cpu_time_is_limited(trials: WorkerTrials, form: Form, param: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"{param}: compiling takes more than {CPU} s of CPU time") as caught:
        check(trials, form)
    assert caught.value.param == param
    check_next(trials)


@pytest.mark.parametrize(
    ("limits", "what"),
    [
        ({"memory_bytes": -(640 * 2**20)}, "compiling needs more than .* MiB of memory"),  # less than two stacks take
        ({"kept_bytes": 0}, "the compiled grammar takes more than 0 MiB of memory"),
    ],
)
def test_memory_is_limited(limits: dict[str, int], what: str) -> None:
    with closing(WorkerTrials(WorkerSpec(str(model_directory("pico")), 1024, (END,), **limits))) as trials:  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match=rf"structured_outputs.regex: {what}") as caught:
            check(trials, StructuredOutputsParams(regex="a"))
        assert caught.value.param == "structured_outputs.regex"


def test_the_memory_of_every_grammar_is_known_also_where_it_was_another_ones_before(trials: WorkerTrials) -> None:
    def wide(turn: int) -> Form:
        names = [f"p{turn}_{number}" for number in range(300)]
        return StructuredOutputsParams(json={"properties": {name: {"type": "string"} for name in names}, "required": names})

    growths = [trials.run(wide(turn), lambda: True).growth for turn in range(4)]
    assert min(growths) > 0.7 * max(growths) > 0


def test_a_job_that_is_not_wanted_is_killed(trials: WorkerTrials) -> None:
    with pytest.raises(CancelledRequestError):
        check(trials, StructuredOutputsParams(grammar=LARK), lambda: False)
    check_next(trials)


def test_errors_of_a_grammar_are_those_of_this_process(trials: WorkerTrials) -> None:
    with pytest.raises(InvalidRequestError, match="regex parse error: unclosed group"):
        check(trials, StructuredOutputsParams(regex="(a"))
    with pytest.raises(InvalidRequestError, match="template") as caught:
        check(trials, ResponseParams(template="{}"))
    assert caught.value.param == "structured_outputs.template"


def test_a_worker_that_ended_is_started_again(trials: WorkerTrials) -> None:
    trials.close()
    check_next(trials)


def test_a_worker_that_does_not_start_refuses_grammars_by_name() -> None:
    trials = WorkerTrials(WorkerSpec("/nowhere", 1024, (END,)))
    with pytest.raises(OverloadedError, match="the process that compiles grammars does not start"):
        check(trials, StructuredOutputsParams(regex="a"))
