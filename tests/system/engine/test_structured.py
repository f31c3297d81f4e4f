"""Constrained sequences among free ones, on a model of random weights: what they say is valid, and nobody else notices."""

import json
import re
from functools import cache
from typing import Any

import numpy as np
import pytest

from jaxserve.cache.swap import SwapSpace
from jaxserve.clock import RealClock
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.build import build_engine
from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import SamplingParams
from jaxserve.sampling.response import ResponseParams
from jaxserve.sampling.structured import StructuredOutputsParams
from jaxserve.types import FinishReason
from tests.support.engine import run, silent
from tests.support.tiny_checkpoint import write_tiny_checkpoint

LENGTH, ROWS, PAGE = 96, 6, 8
ORDER = {
    "type": "object",
    "properties": {
        "order_number": {"type": "integer", "minimum": 0, "maximum": 99},
        "order_name": {"type": "string", "maxLength": 4, "pattern": "^[a-z ]*$"},
        "is_paid": {"type": "boolean"},
    },
    "required": ["order_number", "order_name", "is_paid"],
    "additionalProperties": False,
}
FORMS = [
    StructuredOutputsParams(json=ORDER, disable_any_whitespace=True),
    StructuredOutputsParams(regex="(north|south)-[0-9]{3}"),
    StructuredOutputsParams(choice=("positive", "negative", "neither of the two")),
]
KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 1.5, "seed": 4, "top_k": 30, "top_p": 0.9},
    {"temperature": 0.8, "seed": 5, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
]
COUNT = 12


def params(index: int, form: StructuredOutputsParams | None, **more: Any) -> SamplingParams:
    wanted = {"max_tokens": 64, "ignore_eos": form is None, "structured_outputs": form}
    return SamplingParams(**{**wanted, **KINDS[index % 4], **more})


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    return cache(lambda devices: built(tmp_path_factory.mktemp("tiny"), devices))


@pytest.fixture(params=[1, pytest.param(4, marks=pytest.mark.extended)])
def engine(request, engines):
    return engines(request.param)


BOTH = pytest.mark.parametrize("engine", [1, 4], indirect=True)  # what the devices do; the rest is the host's


def built(directory, devices=1):
    write_tiny_checkpoint(directory)
    settings = {"model": str(directory), "load_format": "dummy", "dtype": "float32", "max_model_len": LENGTH, "page_size": PAGE}
    limits = {
        "num_pages": 90,
        "max_num_seqs": ROWS,
        "before_ready": "fewest",
        "max_num_batched_tokens": 16,
        "tensor_parallel_size": devices,
    }
    config = EngineConfig.from_settings({**settings, **limits, "swap_space": 0.01, "late_compiles": "raise"})
    return build_engine(config, strict_length=True, clock=RealClock(), progress=silent)


def prompts():
    rng = np.random.default_rng(7)
    return [rng.integers(4, 250, int(length)).tolist() for length in rng.integers(4, 24, COUNT)]


def text_of(engine, tokens):
    return engine.tokenizer.decode([token for token in tokens if token > 3])


def is_valid(form: StructuredOutputsParams | ResponseParams | None, text: str) -> bool:
    assert isinstance(form, StructuredOutputsParams)
    if form.regex is not None:
        return re.fullmatch(form.regex, text) is not None
    if form.choice is not None:
        return text in form.choice
    found = json.loads(text)
    assert list(found) == list(ORDER["properties"])  # type: ignore[call-overload]
    assert 0 <= found["order_number"] <= 99
    return re.fullmatch("[a-z ]{0,4}", found["order_name"]) is not None and isinstance(found["is_paid"], bool)


@BOTH
def test_free_rows_say_the_same_beside_constrained_ones_and_these_are_valid(engine):
    free = [params(index, None) for index in range(COUNT)]
    mixed = [params(index, FORMS[index // 2 % 3] if index % 2 else None) for index in range(COUNT)]
    alone, beside = run(engine, prompts(), free), run(engine, prompts(), mixed)
    for index, (one, other) in enumerate(zip(alone.tokens, beside.tokens, strict=True)):
        form = mixed[index].structured_outputs
        if form is None:
            assert one == other
        else:
            assert isinstance(form, StructuredOutputsParams)
            assert is_valid(form, text_of(engine, other)), text_of(engine, other)
            assert beside.updates[index][-1].finish_reason is FinishReason.STOP
    assert beside.scheduler.counts().forced_tokens > 30
    assert engine.core.executor.counts().late_compiles == 0


@pytest.mark.parametrize("overlap", [True, False])
def test_pressed_for_pages_they_say_the_same(engine, overlap):
    """Preempted, computed again, swapped, from the prefix cache, in step with the host or ahead of it."""
    wanted = [params(index, FORMS[index % 3]) for index in range(COUNT)]
    calm = run(engine, prompts(), wanted)
    few = {"num_pages": 22, "growth_reserve": 0.0, "overlap": overlap}
    again = run(engine, prompts(), wanted, **few, prefix_caching=overlap)
    assert again.preemptions
    swapped = run(engine, prompts(), wanted, **few, swap=SwapSpace(90, 0.0))
    assert any(event.swapped for event in swapped.preemptions)
    assert calm.tokens == again.tokens == swapped.tokens


def test_forced_tokens_are_those_that_would_be_chosen_one_by_one(engine):
    """Log-probabilities are of chosen tokens: who asks for them has each token chosen."""
    wanted = [params(index, FORMS[index % 3]) for index in range(COUNT)]
    forced = run(engine, prompts(), wanted)
    chosen = run(engine, prompts(), [params(index, FORMS[index % 3], logprobs=1) for index in range(COUNT)])
    assert forced.tokens == chosen.tokens
    assert chosen.scheduler.counts().forced_tokens == 0
    assert forced.scheduler.counts().forced_tokens > 60
    assert all(update.logprobs is not None for update in chosen.updates[0] if update.token is not None)


def test_every_sequence_of_a_request_has_a_grammar_of_its_own(engine):
    (one,) = prompts()[:1]
    several = run(engine, [one], params(1, FORMS[0], n=4))
    single = run(engine, [one], params(1, FORMS[0]))
    texts = [text_of(engine, tokens) for tokens in several.tokens]
    assert len(set(texts)) > 1
    assert all(is_valid(FORMS[0], text) for text in texts)
    assert several.tokens[0] == single.tokens[0]


def test_an_output_that_is_cut_off_says_so(engine):
    short = run(engine, prompts()[:1], params(0, FORMS[0], max_tokens=9))
    assert len(short.tokens[0]) == 9
    assert short.updates[0][-1].finish_reason is FinishReason.LENGTH
    whole = run(engine, prompts()[:1], params(0, FORMS[0]))
    assert whole.tokens[0][:9] == short.tokens[0]


def test_one_that_is_aborted_leaves_nothing_behind(engine):
    wanted = [params(index, FORMS[index % 3]) for index in range(COUNT)]
    whole = run(engine, prompts(), wanted)
    aborted: list[str] = []

    def abort(core):
        if len(aborted) < 4:
            running = [name for name, one in core.scheduler.sequences.items() if one.num_output > 2 * len(aborted)]
            aborted.extend(core.abort(running[:1]))

    cut = run(engine, prompts(), wanted, each_step=abort)
    assert sum(mine == all_tokens for mine, all_tokens in zip(cut.tokens, whole.tokens, strict=True)) == COUNT - 4


@BOTH
def test_a_dead_end_ends_its_request_alone(engine):
    """Only "yes" may be said, and a bias forbids its last letter."""
    letter = engine.tokenizer.encode("s")[-1]
    dead = SamplingParams(
        temperature=0.0, max_tokens=20, structured_outputs=StructuredOutputsParams(choice=("yes",)), logit_bias={letter: -100.0}
    )
    allowed = SamplingParams(
        temperature=0.0,
        max_tokens=20,
        structured_outputs=StructuredOutputsParams(choice=("yes",)),
        allowed_token_ids=(engine.tokenizer.encode("y")[-1],),
    )
    mixed = run(engine, prompts()[:3], [dead, allowed, params(0, None)])
    assert text_of(engine, mixed.tokens[0]) == "yes", "a bias does not forbid what alone is allowed"
    error = mixed.updates[1][-1].error
    assert isinstance(error, InvalidRequestError)
    assert error.param == "structured_outputs"
    assert mixed.tokens[2] == run(engine, prompts()[2:3], params(0, None)).tokens[0]
