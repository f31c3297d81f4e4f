"""Requests on their way in: limits, seeds, names."""

import pytest

from jaxserve.cache.prefix_hash import CacheNamespace
from jaxserve.engine.intake import Intake, IntakeLimits
from jaxserve.errors import ContextLengthError, ErrorCode, InvalidRequestError
from jaxserve.sampling.params import SamplingParams

VOCAB, CONTEXT = 260, 32
NAMESPACE = CacheNamespace("m", "float32", "r")


def intake_of(tokenizer, *, strict=True, seed=0):
    limits = IntakeLimits(
        max_model_len=CONTEXT,
        vocab_size=VOCAB,
        eos_token_ids=frozenset({1}),
        max_sequences=8,
        seed=seed,
        strict=strict,
    )
    return Intake(tokenizer, limits, NAMESPACE)


def tokens(count):
    return {"prompt_token_ids": [5] * count}


def prepare(intake, prompt=None, **params):
    return intake.prepare(tokens(3) if prompt is None else prompt, SamplingParams(**params), "name", 0.0)


def test_the_three_ways_to_give_a_prompt(tokenizer):
    intake = intake_of(tokenizer)
    ids = tokenizer.encode("hello")
    for prompt in ("hello", {"prompt": "hello"}, {"prompt_token_ids": ids}, {"prompt_token_ids": tuple(ids)}):
        (request,) = prepare(intake, prompt)
        assert request.prompt == tuple(ids)


def test_what_a_request_carries(tokenizer):
    params = SamplingParams(max_tokens=4, temperature=0.5)
    (request,) = intake_of(tokenizer).prepare("hello", params, "name", 12.5)
    assert request.params is params
    assert request.max_tokens == 4
    assert request.eos_token_ids == {1}
    assert request.cache_root == NAMESPACE.root()
    assert request.arrival == 12.5


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "prompt must not be empty"),
        ({"prompt": ""}, "prompt must not be empty"),
        ({"prompt_token_ids": []}, "prompt must not be empty"),
        ({"prompt_token_ids": [VOCAB]}, "prompt has 260: token ids are integers from 0 to 259"),
        ({"prompt_token_ids": [4, -1]}, "prompt has -1: token ids are integers from 0 to 259"),
        ({"prompt_token_ids": [1.0]}, "prompt has 1.0: token ids are integers"),
        ({"prompt_token_ids": [True]}, "prompt has True: token ids are integers"),
        ({"prompt_token_ids": ["a"]}, "prompt has 'a': token ids are integers"),
        ({"prompt_token_ids": 5}, "prompt_token_ids must be a list of token ids"),
        ({"prompt_token_ids": None}, "prompt_token_ids must be a list of token ids"),
        ({"prompt_token_ids": "text"}, "prompt_token_ids must be a list of token ids"),
        ({}, "prompt must be a string or a dict with prompt or prompt_token_ids"),
        ({"text": "hello"}, "prompt must be a string or a dict"),
        ({"prompt": 5}, "prompt must be a string or a dict"),
        ({"prompt": None}, "prompt must be a string or a dict"),
        (None, "prompt must be a string or a dict"),
        (5, "prompt must be a string or a dict"),
        ([4, 5], "prompt must be a string or a dict"),
        (b"hello", "prompt must be a string or a dict"),
    ],
)
def test_a_bad_prompt(tokenizer, prompt, message):
    with pytest.raises(InvalidRequestError, match=message) as refused:
        intake_of(tokenizer).prepare(prompt, SamplingParams(), "name", 0.0)
    assert refused.value.param == "prompt"


def test_a_text_that_is_not_unicode(tokenizer):
    with pytest.raises(InvalidRequestError, match="surrogate"):
        prepare(intake_of(tokenizer), "a\ud800b")


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias"),
        ({"stop_token_ids": [VOCAB]}, "stop_token_ids"),
        ({"allowed_token_ids": [3, VOCAB]}, "allowed_token_ids"),
    ],
)
def test_token_ids_the_model_does_not_know(tokenizer, params, name):
    with pytest.raises(InvalidRequestError, match=f"{name} has 260: token ids are integers from 0 to 259") as refused:
        prepare(intake_of(tokenizer), **params)
    assert refused.value.param == name
    prepare(intake_of(tokenizer), **{name: {VOCAB - 1: 1.0} if name == "logit_bias" else [VOCAB - 1]})


@pytest.mark.parametrize("strict", [False, True])
def test_a_prompt_must_leave_room_for_a_token(tokenizer, strict):
    intake = intake_of(tokenizer, strict=strict)
    assert prepare(intake, tokens(CONTEXT - 1), max_tokens=None)[0].max_tokens == 1
    with pytest.raises(ContextLengthError, match=r"prompt has 32 tokens, but the context holds 32 \(max_model_len\)") as refused:
        prepare(intake, tokens(CONTEXT))
    assert refused.value.param == "prompt"
    assert refused.value.code is ErrorCode.CONTEXT_LENGTH_EXCEEDED


def test_max_tokens_beyond_the_context_is_refused_by_servers_and_cut_offline(tokenizer):
    strict, lenient = intake_of(tokenizer, strict=True), intake_of(tokenizer, strict=False)
    assert prepare(strict, tokens(12), max_tokens=20)[0].max_tokens == 20
    with pytest.raises(ContextLengthError, match=r"max_tokens is 21, .* 12 tokens .* 32\) holds 20 more") as refused:
        prepare(strict, tokens(12), max_tokens=21)
    assert refused.value.param == "max_tokens"
    assert prepare(lenient, tokens(12), max_tokens=10**12)[0].max_tokens == 20
    for intake in (strict, lenient):
        assert prepare(intake, tokens(12), max_tokens=None)[0].max_tokens == 20


def test_more_sequences_than_the_queue_could_ever_hold(tokenizer):
    assert len(prepare(intake_of(tokenizer), n=8)) == 8
    with pytest.raises(InvalidRequestError, match=r"n must be at most 8 \(max_waiting\), got 9") as refused:
        prepare(intake_of(tokenizer), n=9)
    assert refused.value.param == "n"


def test_min_tokens_needs_a_token_that_does_not_stop(tokenizer):
    intake = intake_of(tokenizer)
    only_stops = {"allowed_token_ids": [1, 9], "stop_token_ids": [9]}
    with pytest.raises(InvalidRequestError, match="allowed_token_ids must hold more than stop tokens") as refused:
        prepare(intake, min_tokens=1, **only_stops)
    assert refused.value.param == "allowed_token_ids"
    assert prepare(intake, **only_stops)
    assert prepare(intake, min_tokens=1, ignore_eos=True, **only_stops), "end-of-sequence may be chosen then"


def test_without_a_tokenizer_only_token_ids_are_taken():
    intake = intake_of(None)
    assert prepare(intake, tokens(3))[0].prompt == (5, 5, 5)
    with pytest.raises(InvalidRequestError, match="a text prompt needs a tokenizer"):
        prepare(intake, "hello")
    with pytest.raises(InvalidRequestError, match="stop strings need a tokenizer") as refused:
        prepare(intake, stop="x")
    assert refused.value.param == "stop"


def test_every_sequence_has_its_own_name(tokenizer):
    intake = intake_of(tokenizer)
    requests = [*prepare(intake, n=3), *prepare(intake, n=3), *prepare(intake, seed=1)]
    assert len({request.id for request in requests}) == 7


def test_a_seed_gives_the_same_seeds_whatever_came_before(tokenizer):
    first, second = intake_of(tokenizer), intake_of(tokenizer, seed=9)
    wanted = [request.seed for request in prepare(first, n=4, seed=42)]
    assert wanted[0] == 42
    assert len(set(wanted)) == 4
    prepare(second, n=2)
    assert [request.seed for request in prepare(second, n=4, seed=42)] == wanted
    assert [request.seed for request in prepare(first, n=4, seed=43)] != wanted
    assert all(0 <= seed < 2**64 for seed in wanted)


def test_requests_without_a_seed_differ_but_follow_the_engines_seed(tokenizer):
    def seeds(seed):
        intake = intake_of(tokenizer, seed=seed)
        return [request.seed for _ in range(3) for request in prepare(intake, n=2)]

    assert len(set(seeds(0))) == 6
    assert seeds(0) == seeds(0)
    assert not set(seeds(0)) & set(seeds(1))


def test_the_first_sequence_alone_scores_the_prompt(tokenizer):
    requests = prepare(intake_of(tokenizer), n=3, prompt_logprobs=2, logprobs=1)
    assert [request.params.prompt_logprobs for request in requests] == [2, None, None]
    assert [request.params.logprobs for request in requests] == [1, 1, 1]
