"""A task's generation arguments become sampling parameters, or are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from jaxserve.errors import InvalidRequestError
from jaxserve.evaluation.generation import GenerationArguments, generation
from jaxserve.sampling.params import MAX_STOP_STRINGS, SamplingParams


def wanted(**arguments: Any) -> GenerationArguments:
    return generation(arguments, eos="</s>", max_gen_toks=256)


def test_a_task_that_says_nothing() -> None:
    assert wanted() == GenerationArguments(SamplingParams(max_tokens=256, temperature=0.0), 256, ("</s>",))


@pytest.mark.parametrize("name", ["max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"])
def test_the_length_has_many_names(name: str) -> None:
    assert wanted(**{name: 7}).params.max_tokens == wanted(**{name: 7}).max_tokens == 7


@pytest.mark.parametrize(
    ("arguments", "temperature"),
    [
        ({}, 0.0),
        ({"temperature": 0.7}, 0.7),
        ({"temperature": 0.7, "do_sample": True}, 0.7),
        ({"temperature": 0.7, "do_sample": False}, 0.0),
        ({"do_sample": False}, 0.0),
    ],
)
def test_temperature(arguments: dict[str, Any], temperature: float) -> None:
    assert wanted(**arguments).params.temperature == temperature


def test_sampling_parameters() -> None:
    given = {"temperature": 1.0, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.2, "seed": 3}
    params = wanted(**given, num_beams=1, use_cache=True).params
    assert {name: getattr(params, name) for name in given} == given


def test_stop_strings() -> None:
    assert wanted(until="\n").until == ("\n", "</s>")
    assert wanted(until=["a", "", "</s>"]).until == ("a", "</s>")
    assert wanted(until=["a", "</s>", "b"]).params.stop == ("a", "b"), "the end of sequence is a token"
    arguments = {"until": [f"stop {number}" for number in range(MAX_STOP_STRINGS + 5)]}
    many = generation(arguments, eos="</s>", max_gen_toks=256)
    assert many.params.stop == tuple(arguments["until"][:MAX_STOP_STRINGS])
    assert many.until == (*arguments["until"], "</s>"), "those that the engine does not take cut the text"
    assert len(arguments["until"]) == MAX_STOP_STRINGS + 5, "the task's own are left alone"


@pytest.mark.parametrize("arguments", [{"num_beams": 4}, {"max_length": 100}, {"penalty_alpha": 0.6}])
def test_what_would_have_changed_the_answers_is_refused(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with pytest.raises(InvalidRequestError, match=f"generation_kwargs has {name}=") as refused:
        wanted(**arguments)
    assert refused.value.param == name
