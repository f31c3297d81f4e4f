"""A real model whose engine guesses: every answer is the one without guesses."""

from typing import Any

import pytest

from jaxserve.llm import LLM
from jaxserve.sampling.params import SamplingParams
from jaxserve.sampling.structured import StructuredOutputsParams
from jaxserve.speculation.costs import DraftCosts

SIZES: dict[str, Any] = {
    "max_num_seqs": 4,
    "before_ready": "fewest",
    "max_num_batched_tokens": 32,
    "max_model_len": 192,
    "dtype": "float32",
    "num_pages": 40,
}
TEXT = "the cat sat on the mat, the cat sat on the mat, the cat sat on"  # several chunks of prompt
SCHEMA = StructuredOutputsParams(
    json={
        "type": "array",
        "minItems": 3,
        "items": {
            "type": "object",
            "properties": {"the_name_of_it": {"enum": ["cat", "mat"]}, "how_many_of_it": {"type": "integer", "maximum": 999}},
            "required": ["the_name_of_it", "how_many_of_it"],
            "additionalProperties": False,
        },
    },
    disable_any_whitespace=True,
)
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.8, "seed": 3},
    "truncated": {"temperature": 1.2, "top_k": 5, "top_p": 0.9, "seed": 4},
    "several": {"temperature": 0.7, "n": 3, "seed": 5},
    "logprobs": {"temperature": 0.0, "logprobs": 3, "prompt_logprobs": 1},
    "stop": {"temperature": 0.0, "stop": ["mat"], "ignore_eos": False},
    "penalized": {"temperature": 0.0, "frequency_penalty": 0.5},
    "biased": {"temperature": 0.0, "logit_bias": {5: 2.0}, "min_tokens": 4},
    "undrafted": {"temperature": 0.0, "max_draft_tokens": 0},
    "penalized and drawn": {"temperature": 0.9, "n": 2, "seed": 6, "presence_penalty": 0.4, "repetition_penalty": 1.1},
    "schema": {"temperature": 0.0, "structured_outputs": SCHEMA, "ignore_eos": False},
    "schema, every token chosen": {"temperature": 1.0, "n": 2, "seed": 7, "structured_outputs": SCHEMA, "logprobs": 0},
    "regex": {"temperature": 0.8, "seed": 8, "structured_outputs": StructuredOutputsParams(regex="((the cat|a dog) sat, ){6}no")},
    "regex and stop": {
        "temperature": 0.0,
        "structured_outputs": StructuredOutputsParams(regex="(the (cat|mat), )+"),
        "stop": ["t, the m"],
    },
    "regex and penalties": {
        "temperature": 0.0,
        "structured_outputs": StructuredOutputsParams(regex="[a-c ]+"),
        "frequency_penalty": 0.5,
    },
}


def answers(engine):
    """All at once, more of them than rows and pages, and again with prefixes that are cached."""
    params = [SamplingParams(**{"max_tokens": 60, "ignore_eos": True} | asked) for asked in PARAMS.values()]
    found = []
    for _ in range(2):
        outputs = engine.generate([f"{TEXT} {number % 2}" for number in range(len(params))], params)
        found.append(
            [[(one.text, one.token_ids, one.finish_reason, one.logprobs) for one in output.outputs] for output in outputs]
        )
    return found


def counts(engine):
    return engine._built.core.scheduler.counts()


@pytest.fixture(scope="module")
def plain():
    return answers(LLM("pico", **SIZES))


@pytest.mark.parametrize(
    "asked",
    [
        {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
        pytest.param({"method": "suffix", "num_speculative_tokens": 4}, marks=pytest.mark.extended),  # guesses from elsewhere
    ],
    ids=lambda asked: asked["method"],
)
def test_every_answer_is_the_one_without_guesses(plain, asked, monkeypatch):
    """Whatever steps cost: all guesses are verified."""
    monkeypatch.setattr(DraftCosts, "seconds", lambda costs, rows, tokens: 0.0)
    engine = LLM("pico", **SIZES, speculative_config=asked)
    for with_guesses, without in zip(answers(engine), plain, strict=True):
        for name, ours, theirs in zip(PARAMS, with_guesses, without, strict=True):
            for (text, tokens, reason, logprobs), (its_text, its_tokens, its_reason, its_logprobs) in zip(
                ours, theirs, strict=True
            ):
                assert (text, list(tokens), reason) == (its_text, list(its_tokens), its_reason), name
                if its_logprobs is not None:
                    assert logprobs is not None
                    for position, its_position in zip(logprobs, its_logprobs, strict=True):
                        assert position.keys() == its_position.keys()
                        for token, value in position.items():
                            assert value.logprob == pytest.approx(its_position[token].logprob, abs=1e-4)
    assert counts(engine).spec_decode_num_accepted_tokens > 20
    assert counts(engine).spec_decode_num_drafts > 10
