"""Token ids in, token ids and log-probabilities out, and partial outputs that go on: what a trainer asks of an engine."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from jaxserve.errors import InvalidRequestError
from jaxserve.llm import LLM
from jaxserve.sampling.params import SamplingParams
from tests.integration.sampling.builders import penalized, probabilities
from tests.support.tiny_checkpoint import write_tiny_checkpoint

PROMPTS = [[17, 40, 99, 5, 200, 31, 77], [8, 120, 64], [33, 9]]
EOS = 1
SAMPLED = SamplingParams(max_tokens=12, seed=5, logprobs=0, logprobs_mode="processed_logprobs", ignore_eos=True)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_tiny_checkpoint(tmp_path_factory.mktemp("rollouts") / "model")


def load(directory, **settings):
    return LLM(
        str(directory),
        load_format="dummy",
        dtype="float32",
        max_model_len=96,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        before_ready="fewest",
        page_size=4,
        **settings,
    )


@pytest.fixture(scope="module")
def llm(directory):
    return load(directory)


def prompts():
    return [{"prompt_token_ids": list(prompt)} for prompt in PROMPTS]


def chosen(output):
    return [
        entry[token].logprob for entry, token in zip(output.logprobs, output.token_ids[output.num_given_tokens :], strict=True)
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.7},
        {"temperature": 1.4, "top_k": 30, "top_p": 0.8, "min_p": 0.02},
        {"temperature": 0.0, "presence_penalty": 0.5},
        {"temperature": 0.9, "presence_penalty": 0.4, "frequency_penalty": 0.2, "logit_bias": {7: 4.0, 9: -3.0}},
    ],
    ids=str,
)
def test_processed_logprobs_follow_from_the_raw_ones(llm, raw_logits, changes):
    """The raw ones of every token are read after the fact, as the prompt's, one token allowed after the other."""
    params = replace(SAMPLED, max_tokens=5, logprobs=3, **changes)
    for prompt, result in zip(PROMPTS[1:], llm.generate(prompts()[1:], params), strict=True):
        output = result.outputs[0]
        for place, token in enumerate(output.token_ids):
            before = [*prompt, *output.token_ids[:place]]
            scores = raw_logits(tuple(before))
            scores = penalized(
                scores,
                output.token_ids[:place],
                prompt,
                params.presence_penalty,
                params.frequency_penalty,
                1.0,
            )
            for other, bias in params.logit_bias.items():
                scores[other] += bias
            truncation = {name: getattr(params, name) for name in ("temperature", "top_k", "top_p", "min_p")}
            want = np.log(
                np.maximum(probabilities(scores) if params.temperature == 0 else probabilities(scores, **truncation), 1e-300)
            )
            assert output.logprobs[place][token].logprob == pytest.approx(want[token], abs=2e-4)
            assert output.logprobs[place][token].rank == 1 + (want > want[token] + 1e-4).sum()


@pytest.fixture(scope="module")
def raw_logits(llm):
    """Up to a constant: log-probabilities of every token after some, scored as the last of a prompt."""

    @cache
    def scored(tokens):
        asks = SamplingParams(max_tokens=0, prompt_logprobs=0, prompt_logprobs_start=len(tokens))
        every = [{"prompt_token_ids": [*tokens, other]} for other in range(llm.report.model.vocab_size)]
        return [result.prompt_logprobs[-1][other].logprob for other, result in enumerate(llm.generate(every, asks))]

    return lambda tokens: np.array(scored(tokens))


def test_modes_mix_in_a_batch_and_the_setting_is_the_default(llm, directory):
    raw, processed = replace(SAMPLED, temperature=0.5, logprobs_mode="raw_logprobs"), replace(SAMPLED, temperature=0.5)
    alone = [[llm.generate(prompt, params)[0].outputs[0] for prompt in prompts()] for params in (raw, processed)]
    mixed = [result.outputs[0] for result in llm.generate([*prompts(), *prompts()], [raw] * 3 + [processed] * 3)]
    for one, other in zip([*alone[0], *alone[1]], mixed, strict=True):
        assert one.token_ids == other.token_ids
        assert chosen(one) == pytest.approx(chosen(other), abs=1e-5)
    assert chosen(alone[0][0]) != pytest.approx(chosen(alone[1][0]), abs=1e-3)
    unsaid = replace(processed, logprobs_mode=None)
    assert chosen(llm.generate(prompts()[0], unsaid)[0].outputs[0]) == pytest.approx(chosen(alone[0][0]), abs=1e-5)
    of_setting = load(directory, logprobs_mode="processed_logprobs").generate(prompts()[0], unsaid)[0].outputs[0]
    assert chosen(of_setting) == pytest.approx(chosen(alone[1][0]), abs=1e-5)


def test_alternatives_are_tokens_that_could_come(llm):
    params = replace(SAMPLED, logprobs=10, top_k=3)
    for entry in llm.generate(prompts()[0], params)[0].outputs[0].logprobs:
        assert len(entry) == 3
        assert sum(np.exp(alternative.logprob) for alternative in entry.values()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("mode", ["raw_logits", "processed_logits", "all", 3])
def test_other_modes_are_refused_by_name(mode):
    with pytest.raises(InvalidRequestError, match="logprobs_mode"):
        SamplingParams(logprobs_mode=mode)


def test_token_ids_keep_the_token_that_ends_them(llm):
    biased = SamplingParams(max_tokens=12, logprobs=0, logit_bias={EOS: 100.0}, min_tokens=3, seed=1)
    output = llm.generate(prompts()[0], biased)[0].outputs[0]
    assert output.token_ids[-1] == EOS
    assert len(output.token_ids) == len(output.logprobs) == 4
    assert output.finish_reason == "stop"
    stopped = llm.generate(
        prompts()[0], replace(SAMPLED, stop_token_ids=(output.token_ids[0],), logit_bias={output.token_ids[0]: 100})
    )
    assert stopped[0].outputs[0].token_ids == [output.token_ids[0]]


@pytest.mark.parametrize(
    "params",
    [SAMPLED, replace(SAMPLED, temperature=0.0), replace(SAMPLED, presence_penalty=1.0, repetition_penalty=1.5, top_p=0.9)],
    ids=["sampled", "greedy", "penalized"],
)
@pytest.mark.parametrize("had", [1, 5, 11])
def test_a_partial_output_goes_on_as_if_it_had_not_stopped(llm, params, had):
    for prompt, result in zip(PROMPTS, llm.generate(prompts(), params), strict=True):
        whole = result.outputs[0]
        partial = {"prompt_token_ids": list(prompt), "output_token_ids": whole.token_ids[:had]}
        resumed = llm.generate(partial, params)[0]
        output = resumed.outputs[0]
        assert resumed.prompt_token_ids == prompt
        assert (output.token_ids, output.text, output.num_given_tokens) == (whole.token_ids, whole.text, had)
        assert chosen(output) == pytest.approx(chosen(whole)[had:], abs=1e-4)


def test_any_of_n_goes_on_with_its_own_seed(llm):
    several = llm.generate(prompts()[0], replace(SAMPLED, n=3))[0].outputs
    assert len({tuple(output.token_ids) for output in several}) == 3
    for output in several:
        partial = {"prompt_token_ids": PROMPTS[0], "output_token_ids": output.token_ids[:4]}
        assert llm.generate(partial, replace(SAMPLED, seed=output.seed))[0].outputs[0].token_ids == output.token_ids


def test_stop_strings_see_what_was_there(llm):
    whole = llm.generate(prompts()[0], SAMPLED)[0].outputs[0]
    before, after = llm.tokenizer.decode(whole.token_ids[:6]), llm.tokenizer.decode(whole.token_ids[6:7])
    stop = replace(SAMPLED, stop=((before[-2:] + after),))
    partial = {"prompt_token_ids": PROMPTS[0], "output_token_ids": whole.token_ids[:6]}
    assert llm.generate(partial, stop)[0].outputs[0].text == llm.generate(prompts()[0], stop)[0].outputs[0].text


@pytest.mark.parametrize(
    ("prompt", "changes", "named"),
    [
        ({"prompt_token_ids": [5], "output_token_ids": 7}, {}, "list"),
        ({"prompt": "a", "output_token_ids": [7]}, {}, "prompt_token_ids"),
        ({"prompt_token_ids": [5], "output_token_ids": [70_000]}, {}, "token ids are"),
        ({"prompt_token_ids": [5], "output_token_ids": [7] * 12}, {}, "max_tokens"),
        ({"prompt_token_ids": [5], "output_token_ids": [7, EOS]}, {"ignore_eos": False}, "complete"),
        ({"prompt_token_ids": [5], "output_token_ids": [7, 9]}, {"stop_token_ids": (9,)}, "complete"),
        ({"prompt_token_ids": [5], "output_token_ids": [7]}, {"n": 2}, "n 1"),
        ({"prompt_token_ids": [5, 6], "output_token_ids": [7]}, {"prompt_logprobs": 1}, "prompt_logprobs"),
    ],
)
def test_what_cannot_go_on_is_refused(llm, prompt, changes, named):
    with pytest.raises(InvalidRequestError, match=named) as caught:
        llm.generate(prompt, replace(SAMPLED, **changes))
    assert caught.value.param == "output_token_ids"
