"""Policies files: what may be in them, whose values hold, and errors that name the numbers."""

import json

import pytest

from jaxserve.config.policies import QUEUE_TIMEOUT, ClassPolicy, Policies, TenantPolicy
from jaxserve.config.policies_file import load_policies
from jaxserve.errors import ConfigError
from jaxserve.types import ServiceClass

PAID, FREE, BATCH = ServiceClass


@pytest.fixture
def load(tmp_path):
    def load(content):
        path = tmp_path / "policies.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return load_policies(str(path))

    return load


def test_without_a_file_nothing_is_limited():
    policies = load_policies(None)
    assert policies.of_class(PAID) == ClassPolicy()
    assert policies.of_tenant("anybody") == TenantPolicy(
        weight=1.0, kv_share=1.0, kv_cap=1.0, burst_headroom=0.2, prefill_reserve=0.0
    )
    assert [policies.queue_timeout(service_class) for service_class in (PAID, FREE, BATCH)] == [
        QUEUE_TIMEOUT,
        QUEUE_TIMEOUT,
        None,
    ]


def test_a_file_names_classes_and_tenants(load):
    policies = load(
        {
            "classes": {"batch": {"kv_share": 0.5, "timeout": 600, "max_total_tokens": 1000}},
            "tenants": {"*": {"kv_share": 0.3}, "acme": {"weight": 4, "prefill_reserve": 0.25}},
        }
    )
    assert policies.of_class(BATCH) == ClassPolicy(kv_share=0.5, timeout=600.0, max_total_tokens=1000)
    assert policies.of_class(PAID) == ClassPolicy()
    assert policies.of_tenant("acme") == TenantPolicy(weight=4.0, prefill_reserve=0.25), "nothing of '*' is in it"
    assert policies.of_tenant("anybody") == TenantPolicy(kv_share=0.3)


@pytest.mark.parametrize(("value", "wanted"), [(5, 5.0), (None, None)])
@pytest.mark.parametrize("service_class", list(ServiceClass))
def test_a_queue_timeout_that_is_null_is_none_at_all(load, service_class, value, wanted):
    assert load({"classes": {service_class: {"queue_timeout": value}}}).queue_timeout(service_class) == wanted


def test_of_other_settings_the_queue_timeout_is_not_changed(load):
    policies = load({"classes": {"interactive_free": {"timeout": 60}, "batch": {"timeout": 60}}})
    assert (policies.queue_timeout(FREE), policies.queue_timeout(BATCH)) == (QUEUE_TIMEOUT, None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"classes": {"batch": {"kv_share": 0}}}, r"classes\.batch\.kv_share must be in \(0, 1\], got 0"),
        ({"classes": {"batch": {"kv_share": 1.5}}}, r"classes\.batch\.kv_share must be in \(0, 1\], got 1\.5"),
        ({"classes": {"batch": {"timeout": 0}}}, r"classes\.batch\.timeout must be above 0 or null, got 0"),
        ({"classes": {"batch": {"queue_timeout": -1}}}, r"classes\.batch\.queue_timeout must be above 0 or null, got -1"),
        ({"classes": {"batch": {"max_total_tokens": 0}}}, r"classes\.batch\.max_total_tokens must be above 0 or null, got 0"),
        ({"classes": {"batch": {"max_draft_tokens": -1}}}, r"classes\.batch\.max_draft_tokens must be at least 0 or null"),
        ({"tenants": {"a": {"max_draft_tokens": -1}}}, r"tenants\.a\.max_draft_tokens must be at least 0 or null, got -1"),
        ({"tenants": {"a": {"weight": 0}}}, r"tenants\.a\.weight must be between 0\.001 and 1000, got 0"),
        ({"tenants": {"a": {"burst_headroom": 1}}}, r"tenants\.a\.burst_headroom must be in \[0, 1\), got 1"),
        ({"tenants": {"a": {"prefill_reserve": -0.5}}}, r"tenants\.a\.prefill_reserve must be in \[0, 1\), got -0\.5"),
        ({"tenants": {"a": {"kv_share": 0.5, "kv_cap": 0.25}}}, r"tenants\.a .*got kv_share 0\.5 and kv_cap 0\.25"),
        ({"tenants": {"a": {"kv_share": 0}}}, r"tenants\.a .*got kv_share 0\.0 and kv_cap 1\.0"),
        ({"tenants": {"a": {"kv_cap": 1.5}}}, r"tenants\.a .*got kv_share 1\.0 and kv_cap 1\.5"),
        (
            {"tenants": {"a": {"prefill_reserve": 0.75}, "b": {"prefill_reserve": 0.5}}},
            r"prefill_reserve adds up to 1\.25, more than a step has \(1\): a 0\.75, b 0\.5",
        ),
    ],
)
def test_impossible_numbers_are_named(load, content, message):
    with pytest.raises(ConfigError, match=f"policies: {message}") as refused:
        load(content)
    assert refused.value.param == "policies"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["weight", "kv_share", "kv_cap", "burst_headroom", "prefill_reserve"])
def test_numbers_of_code_are_finite_too(name, value):
    with pytest.raises(ConfigError, match=rf"tenants\.a.*{name}"):
        Policies(tenants={"a": TenantPolicy(**{name: value})})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["queue_timeout", "timeout", "kv_share"])
def test_numbers_of_classes_are_finite_too(name, value):
    with pytest.raises(ConfigError, match=rf"classes\.batch\.{name}"):
        Policies(classes={BATCH: ClassPolicy(**{name: value})})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"policies\.json: "),
        ({"clases": {}}, r"policies\.json: .*clases"),
        ({"tenants": {"a": {"wieght": 2}}}, r"policies\.json: .*tenants\.a.*wieght"),
        ({"classes": {"batch": {"kv_shares": 1, "kv_share": 1}}}, r"policies\.json: .*classes\.batch: kv_shares"),
        ({"classes": {"batch": {"queue_timeout": "soon"}}}, r"policies\.json: .*soon"),
        ({"tenants": {"a": {"weight": "2"}}}, r"policies\.json: .*float.*tenants"),
        ({"classes": {"interactive": {}}}, r"policies\.json: .*interactive"),
        ({"classes": {"batch": {"kv_share": None}}}, r"policies\.json: .*kv_share"),
    ],
)
def test_files_that_cannot_be_read_are_named(load, content, message):
    with pytest.raises(ConfigError, match=message):
        load(content)


@pytest.mark.parametrize("content", ['{"tenants": {"a": {"weight": %s}}}' % ("1" + "0" * 400), '{"a":' * 300 + "1" + "}" * 300])
def test_values_out_of_bounds_are_named(load, content):
    with pytest.raises(
        ConfigError, match=r"^policies: .*(tenants\.a\.weight must be an integer of 64 bits|is nested too deeply)"
    ):
        load(content)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere\.json: No such file"):
        load_policies(str(tmp_path / "nowhere.json"))


def test_all_of_a_step_may_be_reserved(load):
    policies = load({"tenants": {name: {"prefill_reserve": 0.25} for name in "abcd"}})
    assert policies.of_tenant("d").prefill_reserve == 0.25
