"""SamplingParams: defaults, what is refused and how, and what the engine's int32 and float32 arrays can hold."""

from collections import Counter
from typing import Any, cast

import pytest

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.options import RowSource
from jaxserve.sampling.params import (
    MAX_INT32,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_MIN_TOKENS,
    MAX_SEQUENCES,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    SamplingParams,
    key_of_seed,
)
from jaxserve.step.rows import RowTable

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("n", 0, f"between 1 and {MAX_SEQUENCES}, got 0"),
        ("n", MAX_SEQUENCES + 1, f"between 1 and {MAX_SEQUENCES}"),
        ("n", 1.0, "an integer"),
        ("n", True, "an integer"),
        ("max_tokens", 0, "at least 1, got 0"),
        ("max_tokens", -3, "at least 1"),
        ("max_tokens", "5", "an integer or null"),
        ("min_tokens", -1, "between 0 and"),
        ("min_tokens", 17, "between 0 and 16, got 17"),
        ("temperature", -1, r"between 0.0 and 100.0, got -1"),
        ("temperature", 101, "between 0.0 and 100.0"),
        ("temperature", NAN, "a finite number"),
        ("temperature", INF, "a finite number"),
        ("temperature", "hot", "a finite number"),
        ("temperature", None, "a finite number"),
        ("top_k", -2, "between -1 and"),
        ("top_k", MAX_INT32 + 1, f"between -1 and {MAX_INT32}"),
        ("top_k", 1.5, "an integer"),
        ("top_p", 2, r"in \(0, 1\], got 2"),
        ("top_p", 0, r"in \(0, 1\]"),
        ("top_p", NAN, "a finite number"),
        ("min_p", 1.5, "between 0.0 and 1.0"),
        ("min_p", -0.1, "between 0.0 and 1.0"),
        ("presence_penalty", 2.5, "between -2.0 and 2.0"),
        ("frequency_penalty", -2.5, "between -2.0 and 2.0"),
        ("repetition_penalty", 0, "above 0, got 0"),
        ("repetition_penalty", -1.0, "above 0"),
        ("repetition_penalty", 1e300, "a finite number"),
        ("repetition_penalty", 10**400, "a finite number"),
        ("seed", -(2**63) - 1, "between"),
        ("seed", 2**64, "between"),
        ("seed", 0.5, "an integer or null"),
        ("logprobs", MAX_LOGPROBS + 1, f"between 0 and {MAX_LOGPROBS}"),
        ("logprobs", -1, f"between 0 and {MAX_LOGPROBS}"),
        ("prompt_logprobs", True, "an integer or null"),
        ("prompt_logprobs", MAX_LOGPROBS + 1, f"between 0 and {MAX_LOGPROBS}"),
        ("prompt_logprobs_start", 1, "0, or left out, without prompt_logprobs"),
        ("prompt_logprobs_start", -1, "at least 0, got -1"),
        ("prompt_logprobs_start", None, "an integer"),
        ("stop", ["x"] * (MAX_STOP_STRINGS + 1), f"at most {MAX_STOP_STRINGS} strings, got {MAX_STOP_STRINGS + 1}"),
        ("stop", "", "a list of non-empty strings"),
        ("stop", ["a", ""], "a list of non-empty strings"),
        ("stop", [1], "a list of non-empty strings"),
        ("stop", 5, "a list"),
        ("stop_token_ids", range(MAX_STOP_TOKEN_IDS + 1), f"at most {MAX_STOP_TOKEN_IDS} ids, got {MAX_STOP_TOKEN_IDS + 1}"),
        ("stop_token_ids", [-1], "a list of token ids"),
        ("stop_token_ids", ["a"], "a list of token ids"),
        ("stop_token_ids", [True], "a list of token ids"),
        ("stop_token_ids", 7, "a list"),
        ("allowed_token_ids", [], "a non-empty list or null"),
        ("allowed_token_ids", [1.0], "a list of token ids"),
        ("logit_bias", dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 1.0), f"at most {MAX_LOGIT_BIAS} entries"),
        ("logit_bias", {3: 101.0}, r"in \[-100, 100\], got 101"),
        ("logit_bias", {3: NAN}, r"in \[-100, 100\]"),
        ("logit_bias", {3: "a"}, r"in \[-100, 100\], got 'a'"),
        ("logit_bias", {"3": 1.0}, "keyed by token ids, got '3'"),
        ("logit_bias", {-3: 1.0}, "keyed by token ids, got -3"),
        ("logit_bias", [3], "a mapping from token ids to numbers"),
        ("ignore_eos", "no", "true or false"),
        ("include_stop_str_in_output", 1, "true or false"),
        ("skip_special_tokens", None, "true or false"),
    ],
)
def test_what_is_refused_names_the_field_and_the_limit(name, value, limit):
    with pytest.raises(InvalidRequestError, match=f"{name} must be .*{limit}") as refused:
        SamplingParams(**{name: value})
    assert refused.value.param == name


def test_min_tokens_may_not_exceed_max_tokens():
    with pytest.raises(InvalidRequestError, match=f"min_tokens must be between 0 and {MAX_MIN_TOKENS}"):
        SamplingParams(min_tokens=MAX_MIN_TOKENS + 1, max_tokens=None)
    assert SamplingParams(min_tokens=5, max_tokens=5).min_tokens == 5
    with pytest.raises(InvalidRequestError, match="min_tokens must be between 0 and 5, got 6"):
        SamplingParams(min_tokens=6, max_tokens=5)


def test_only_a_prompt_that_is_scored_may_have_no_output():
    assert SamplingParams(max_tokens=0, prompt_logprobs=0, prompt_logprobs_start=7).scores_only
    assert not SamplingParams(max_tokens=1, prompt_logprobs=0).scores_only
    assert not SamplingParams(max_tokens=None).scores_only
    for name, wrong in (("max_tokens", {"max_tokens": -1}), ("n", {"n": 2}), ("min_tokens", {"min_tokens": 1})):
        with pytest.raises(InvalidRequestError, match=f"{name} must be") as refused:
            SamplingParams(**cast(dict[str, Any], {"max_tokens": 0, "prompt_logprobs": 0} | wrong))
        assert refused.value.param == name


def test_lists_become_tuples_and_one_string_a_list():
    assert SamplingParams(stop="end").stop == ("end",)  # type: ignore[arg-type]  # as the test says
    assert SamplingParams(stop=["a", "b"], stop_token_ids=range(2)).stop_token_ids == (0, 1)  # type: ignore[arg-type]
    assert SamplingParams(allowed_token_ids=[4]).allowed_token_ids == (4,)  # type: ignore[arg-type]


def test_null_lists_are_empty():
    nulls: dict[str, Any] = {"stop": None, "stop_token_ids": None, "logit_bias": None}
    assert SamplingParams(**nulls) == SamplingParams()


LARGEST = {
    "top_k": MAX_INT32,
    "max_tokens": None,
    "min_tokens": MAX_MIN_TOKENS,
    "temperature": 100.0,
    "repetition_penalty": 3.4e38,
    "seed": 2**64 - 1,
    "logprobs": MAX_LOGPROBS,
    "stop_token_ids": range(MAX_STOP_TOKEN_IDS),
    "logit_bias": {0: -100},
}
SMALLEST = {"top_k": -1, "temperature": 1e-300, "repetition_penalty": 1e-300, "top_p": 1e-300, "min_p": 1e-300, "seed": -(2**63)}


@pytest.mark.parametrize("extremes", [LARGEST, SMALLEST])
def test_every_value_allowed_fits_the_engines_arrays(extremes):
    """A number too large for a row would end the engine, not the request."""
    params = SamplingParams(**extremes)
    assert params.seed is not None
    source = RowSource(params, params.seed, frozenset(params.stop_token_ids))
    table = RowTable(1, 4)
    assert table.take(table.pack(source), 1000 + params.min_tokens) == 0


def test_penalized():
    assert not SamplingParams().penalized
    for name, value in (("presence_penalty", 0.1), ("frequency_penalty", -0.1), ("repetition_penalty", 0.9)):
        given: dict[str, Any] = {name: value}
        assert SamplingParams(**given).penalized


@pytest.mark.parametrize(
    ("seed", "key"),
    [(0, (0, 0)), (1, (0, 1)), (2**32, (1, 0)), (2**64 - 1, (2**32 - 1, 2**32 - 1)), (-(2**63), (2**31, 0))],
)
def test_key_of_seed(seed, key):
    assert key_of_seed(seed) == key


def test_nearby_seeds_have_their_own_keys():
    keys = Counter(key_of_seed(seed) for seed in [*range(100), *(i << 32 for i in range(1, 100))])
    assert max(keys.values()) == 1
