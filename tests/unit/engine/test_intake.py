"""Requests on their way in: limits, seeds, names, and what their options come to."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.cache.prefix_hash import CacheNamespace
from jaxserve.config.policies import ClassPolicy, Policies, TenantPolicy
from jaxserve.engine.budgets import Budgets, cache_salt
from jaxserve.engine.intake import Intake, IntakeLimits
from jaxserve.errors import ContextLengthError, ErrorCode, InvalidRequestError
from jaxserve.sampling.params import SamplingParams
from jaxserve.types import OwnTokenIds, RequestOptions, ServiceClass

VOCAB, CONTEXT, PAGES, PAGE = 260, 32, 10, 4
PAID, FREE, BATCH = ServiceClass
NAMESPACE = CacheNamespace("m", "float32", "r")


def intake_of(tokenizer, *, strict=True, seed=0, policies=None, default_class=PAID, default_max_tokens=None):
    limits = IntakeLimits(
        max_model_len=CONTEXT,
        vocab_size=VOCAB,
        eos_token_ids=frozenset({1}),
        max_sequences=8,
        seed=seed,
        strict=strict,
        default_max_tokens=default_max_tokens,
    )
    budgets = Budgets(policies or Policies(), default_class, num_pages=PAGES, page_size=PAGE)
    return Intake(tokenizer, limits, NAMESPACE, budgets)


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


class Unreadable(OwnTokenIds):
    """Fails whoever looks for its greatest."""

    def __iter__(self):
        return iter([5, VOCAB])


def test_tokens_of_our_own_tokenizer_are_not_checked_again(tokenizer):
    """Only where it knows more of them than the model has embeddings, and those of clients always are."""
    assert tokenizer.vocab_size <= VOCAB
    prepare(intake_of(tokenizer), {"prompt_token_ids": Unreadable([5, 6])})
    with pytest.raises(InvalidRequestError, match=f"prompt has {VOCAB}"):
        prepare(intake_of(tokenizer), {"prompt_token_ids": [5, VOCAB]})
    unknown = tokenizer.vocab_size - 1
    smaller = with_limits(intake_of(tokenizer), vocab_size=unknown)
    for ids in (OwnTokenIds([5, unknown]), [5, unknown]):
        with pytest.raises(InvalidRequestError, match="prompt has"):
            prepare(smaller, {"prompt_token_ids": ids})


def with_limits(intake, **limits):
    rules = intake.rules
    return Intake.by_rules(intake._tokenizer, replace(rules, limits=replace(rules.limits, **limits)), "")


@pytest.mark.parametrize("strict", [False, True])
def test_a_prompt_must_leave_room_for_a_token(tokenizer, strict):
    intake = intake_of(tokenizer, strict=strict)
    assert prepare(intake, tokens(CONTEXT - 1), max_tokens=None)[0].max_tokens == 1
    with pytest.raises(ContextLengthError, match=r"prompt has 32 tokens, but .* length is 32 \(max_model_len\)") as refused:
        prepare(intake, tokens(CONTEXT))
    assert refused.value.param == "prompt"
    assert refused.value.code is ErrorCode.CONTEXT_LENGTH_EXCEEDED


def test_max_tokens_beyond_the_context_is_refused_by_servers_and_cut_offline(tokenizer):
    strict, lenient = intake_of(tokenizer, strict=True), intake_of(tokenizer, strict=False)
    assert prepare(strict, tokens(12), max_tokens=20)[0].max_tokens == 20
    with pytest.raises(
        ContextLengthError, match=r"max_tokens is 21, .* length is 32 \(max_model_len\), .* 12 tokens leaves 20"
    ) as refused:
        prepare(strict, tokens(12), max_tokens=21)
    assert refused.value.param == "max_tokens"
    assert prepare(lenient, tokens(12), max_tokens=10**12)[0].max_tokens == 20
    for intake in (strict, lenient):
        assert prepare(intake, tokens(12), max_tokens=None)[0].max_tokens == 20


def test_the_checkpoints_longest_output_is_for_requests_that_do_not_say():
    """It never makes a request unfit: what the context leaves is less, or enough."""
    intake = intake_of(None, default_max_tokens=15)
    assert [prepare(intake, tokens(count), max_tokens=None)[0].max_tokens for count in (12, 17, 30)] == [15, 15, 2]
    assert prepare(intake, tokens(12), max_tokens=20)[0].max_tokens == 20


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
    requests = prepare(intake_of(tokenizer), n=3, prompt_logprobs=2, prompt_logprobs_start=1, logprobs=1)
    assert [request.params.prompt_logprobs for request in requests] == [2, None, None]
    assert [request.params.prompt_logprobs_start for request in requests] == [1, 0, 0]
    assert [request.task for request in requests] == ["generate"] * 3
    assert [request.params.logprobs for request in requests] == [1, 1, 1]


def test_the_last_token_of_a_prompt_that_is_only_scored_need_not_fit(tokenizer):
    intake = intake_of(tokenizer, strict=True)
    (request,) = prepare(intake, tokens(CONTEXT + 1), max_tokens=0, prompt_logprobs=0)
    assert (len(request.prompt), request.task, request.max_tokens) == (CONTEXT + 1, "score", 0)
    with pytest.raises(ContextLengthError, match=r"prompt has 34 tokens, but .* length is 32"):
        prepare(intake, tokens(CONTEXT + 2), max_tokens=0, prompt_logprobs=0)


def test_something_must_be_left_to_score(tokenizer):
    intake = intake_of(tokenizer)
    assert prepare(intake, tokens(3), prompt_logprobs=0, prompt_logprobs_start=2)
    with pytest.raises(InvalidRequestError, match="prompt_logprobs_start is 3, but the prompt has 3 tokens") as refused:
        prepare(intake, tokens(3), prompt_logprobs=0, prompt_logprobs_start=3)
    assert refused.value.param == "prompt_logprobs_start"
    assert prepare(intake, tokens(1), prompt_logprobs=0)
    with pytest.raises(InvalidRequestError, match="max_tokens 0 needs a prompt of at least 2 tokens") as refused:
        prepare(intake, tokens(1), prompt_logprobs=0, max_tokens=0)
    assert refused.value.param == "max_tokens"


# Options


def optioned(intake, options, prompt=3, arrival=100.0, **params):
    return intake.prepare(tokens(prompt), SamplingParams(**params), "name", arrival, options)


def test_without_options_a_request_has_the_default_class_and_nobodys_tenant():
    for default in ServiceClass:
        (request,) = prepare(intake_of(None, default_class=default))
        assert (request.tenant, request.service_class, request.parent) == ("", default, None)


def test_options_that_a_request_carries():
    options = RequestOptions(tenant="acme", service_class=FREE, queue_timeout=2.0, timeout=5)
    requests = optioned(intake_of(None), options, n=3)
    assert {(request.tenant, request.service_class) for request in requests} == {("acme", FREE)}
    assert {(request.queue_deadline, request.deadline) for request in requests} == {(102.0, 105.0)}
    first = requests[0].id
    assert [request.parent for request in requests] == [None, first, first]


def test_a_class_may_be_given_by_name():
    (request,) = optioned(intake_of(None), RequestOptions(service_class="batch"))  # type: ignore[arg-type]  # as the test says
    assert request.service_class is BATCH


@pytest.mark.parametrize(
    ("policy", "options", "queue_deadline", "deadline"),
    [
        ({}, {}, 130.0, math.inf),
        ({}, {"queue_timeout": 50.0}, 150.0, math.inf),
        ({}, {"timeout": 7.0}, 107.0, 107.0),
        ({"queue_timeout": 3.0, "timeout": 9.0}, {}, 103.0, 109.0),
        ({"queue_timeout": None}, {}, math.inf, math.inf),
        ({"queue_timeout": None, "timeout": 9.0}, {}, math.inf, 109.0),
        ({"queue_timeout": 3.0, "timeout": 9.0}, {"queue_timeout": 6.0, "timeout": 8.0}, 106.0, 108.0),
        ({"timeout": 9.0}, {"queue_timeout": 20.0, "timeout": 20.0}, 109.0, 109.0),
    ],
)
def test_deadlines(policy, options, queue_deadline, deadline):
    intake = intake_of(None, policies=Policies(classes={PAID: ClassPolicy(**policy)}))
    (request,) = optioned(intake, RequestOptions(**options))
    assert (request.queue_deadline, request.deadline) == (queue_deadline, deadline)


def test_batch_work_waits_for_any_time():
    (request,) = optioned(intake_of(None), RequestOptions(service_class=BATCH, timeout=60.0))
    assert (request.queue_deadline, request.deadline) == (math.inf, 160.0)


@pytest.mark.parametrize(
    ("policy", "option", "params", "expected"),
    [
        (None, None, {"max_tokens": None}, 29),
        (None, 10, {"max_tokens": None}, 7),
        (None, 10, {"max_tokens": 4}, 4),
        (None, 10, {"max_tokens": None, "n": 3}, 2),
        (8, None, {"max_tokens": None}, 5),
        (8, 10, {"max_tokens": None}, 5),
        (12, 10, {"max_tokens": None}, 7),
        (None, 10**9, {"max_tokens": None}, 29),
        (None, 6, {"max_tokens": 9, "n": 3}, 1),
    ],
)
def test_outputs_share_the_token_budget_that_the_prompt_leaves(policy, option, params, expected):
    intake = intake_of(None, policies=Policies(classes={PAID: ClassPolicy(max_total_tokens=policy)}))
    requests = optioned(intake, RequestOptions(max_total_tokens=option), **params)
    assert {request.max_tokens for request in requests} == {expected}


@pytest.mark.parametrize(
    ("of_class", "of_tenant", "asked", "expected"),
    [
        (None, None, -1, -1),
        (None, None, 9, 9),
        (4, None, -1, 4),
        (4, 2, 9, 2),
        (None, 3, 1, 1),
        (0, 3, -1, 0),
    ],
)
def test_policies_bound_the_drafts_of_rows(of_class, of_tenant, asked, expected):
    classes, tenants = {PAID: ClassPolicy(max_draft_tokens=of_class)}, {"acme": TenantPolicy(max_draft_tokens=of_tenant)}
    intake = intake_of(None, policies=Policies(classes=classes, tenants=tenants))
    requests = optioned(intake, RequestOptions(tenant="acme"), max_draft_tokens=asked, n=2)
    assert [request.params.max_draft_tokens for request in requests] == [expected, expected]


def test_a_budget_without_a_token_for_every_sequence_is_refused():
    with pytest.raises(
        InvalidRequestError, match=r"max_total_tokens is 5, but a prompt of 3 tokens .* each of 3 sequences make 6"
    ) as refused:
        optioned(intake_of(None), RequestOptions(max_total_tokens=5), n=3)
    assert refused.value.param == "max_total_tokens"


def test_a_budget_may_be_all_prompt_where_that_is_only_scored():
    scoring = {"max_tokens": 0, "prompt_logprobs": 0}
    assert optioned(intake_of(None), RequestOptions(max_total_tokens=3), **scoring)[0].max_tokens == 0
    with pytest.raises(InvalidRequestError, match=r"max_total_tokens is 2, but a prompt of 3 tokens .* make 3"):
        optioned(intake_of(None), RequestOptions(max_total_tokens=2), **scoring)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tenant": "x" * 129}, "tenant must be a string of at most 128 printable characters, got 129 characters"),
        ({"tenant": "a\nb"}, r"tenant must be .* got 'a\\nb'"),
        ({"tenant": "\ud800"}, "tenant must be"),
        ({"tenant": None}, "tenant must be .* got None"),
        ({"cache_salt": "x" * 257}, "cache_salt must be a string of at most 256 characters, got 257 characters"),
        ({"cache_salt": 5}, "cache_salt must be .* got 5"),
        ({"cache_salt": "\ud800"}, "cache_salt must be"),
        (
            {"service_class": "gold"},
            "service_class must be one of interactive_paid, interactive_free, batch, got 'gold'",
        ),
        ({"service_class": 0}, "service_class must be one of"),
        ({"queue_timeout": 0}, "queue_timeout must be a finite number of seconds above 0, got 0"),
        ({"queue_timeout": -1.0}, "queue_timeout must be"),
        ({"timeout": math.inf}, "timeout must be a finite number of seconds above 0, got inf"),
        ({"timeout": math.nan}, "timeout must be"),
        ({"timeout": True}, "timeout must be"),
        ({"timeout": "3"}, "timeout must be"),
        ({"max_total_tokens": 1}, "max_total_tokens must be an integer of at least 2, .* got 1"),
        ({"max_total_tokens": 2.5}, "max_total_tokens must be"),
        ({"max_total_tokens": True}, "max_total_tokens must be"),
    ],
)
def test_options_that_no_request_may_have(options, message):
    with pytest.raises(InvalidRequestError, match=message) as refused:
        optioned(intake_of(None), RequestOptions(**options))
    assert refused.value.param == next(iter(options))
    for fine in (
        {"tenant": "x" * 128},
        {"cache_salt": "x" * 256},
        {"cache_salt": "\x1d\n"},
        {"max_total_tokens": 4},
        {"timeout": 1e-9},
    ):
        assert optioned(intake_of(None), RequestOptions(**fine))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("policies", "name"),
    [
        (Policies(classes={PAID: ClassPolicy(kv_share=0.5)}), "kv_share of class interactive_paid, 0.5 of 10 pages of 4 tokens"),
        (
            Policies(classes={PAID: ClassPolicy(kv_share=0.9)}, tenants={"acme": TenantPolicy(kv_share=0.2, kv_cap=0.5)}),
            "kv_cap of tenant 'acme', 0.5 of 10 pages of 4 tokens",
        ),
    ],
)
def test_what_the_pages_of_its_class_or_tenant_can_never_hold_is_refused(policies, name, strict):
    intake, options = intake_of(None, policies=policies, strict=strict), RequestOptions(tenant="acme")
    assert optioned(intake, options, 19, max_tokens=None)[0].max_tokens == 1
    assert optioned(intake, options, 12, max_tokens=8)[0].max_tokens == 8
    with pytest.raises(ContextLengthError, match=f"prompt has 20 tokens, but .* length is 20 .{name}") as refused:
        optioned(intake, options, 20, max_tokens=None)
    assert refused.value.param == "prompt"
    if strict:
        with pytest.raises(ContextLengthError, match=f"max_tokens is 9, .* length is 20 .{name}.* leaves 8"):
            optioned(intake, options, 12, max_tokens=9)
    else:
        assert optioned(intake, options, 12, max_tokens=9)[0].max_tokens == 8
    assert optioned(intake, replace(options, service_class=FREE, tenant="other"), 20, max_tokens=None)[0].max_tokens == 12


def test_what_pages_hold_depends_on_windows(tokenizer):
    """5 of 10 pages: 20 tokens without windows, 8 in each of two groups, and any number where a window and a step lie in 5."""
    policies = Policies(classes={PAID: ClassPolicy(kv_share=0.5)})

    def most(**windows):
        budgets = Budgets(policies, PAID, num_pages=10, page_size=4, **windows)
        intake = Intake.by_rules(tokenizer, Intake(None, intake_of(None).rules.limits, NAMESPACE, budgets).rules, "")
        return intake.prepare(tokens(3), SamplingParams(max_tokens=None), "name", 0.0)[0].max_tokens + 3

    assert most() == 20
    assert most(windows=(None, None)) == 8
    assert most(windows=(None, 3), max_chunk=2) == 12
    assert most(windows=(9,), max_chunk=8) == CONTEXT


def test_tenants_and_salts_never_share_a_root():
    intake = intake_of(None)
    names = ("", "a", "ab", "1:", "1:a", "3", "3:b")
    roots = {
        (tenant, salt): optioned(intake, RequestOptions(tenant=tenant, cache_salt=salt))[0].cache_root
        for tenant, salt in itertools.product(names, names)
    }
    assert len(set(roots.values())) == len(roots)
    assert roots["", ""] == NAMESPACE.root()
    assert roots["a", "ab"] == intake.cache_root(RequestOptions(tenant="a", cache_salt="ab", timeout=3.0))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(*[st.text("0123:ab", max_size=14)] * 2), min_size=2, max_size=2, unique=True))
def test_the_salt_of_a_tenant_is_nobody_elses(pairs):
    first, second = (cache_salt(RequestOptions(tenant=tenant, cache_salt=salt)) for tenant, salt in pairs)
    assert first != second
