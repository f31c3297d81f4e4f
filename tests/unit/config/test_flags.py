"""Flags are generated from the dataclasses: every field comes back from the command line as it was."""

import argparse
import re
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from jaxserve.config.fields import (
    CacheConfig,
    CompileConfig,
    EngineConfig,
    KernelConfig,
    ModelConfig,
    ParallelConfig,
    RecordConfig,
    SchedulerConfig,
)
from jaxserve.config.flags import add_flags, from_flags
from jaxserve.config.lora import LoraConfig
from jaxserve.config.server import ServerConfig
from jaxserve.config.speculative import SpeculationConfig
from jaxserve.errors import ConfigError

CONFIGS = (
    ModelConfig,
    CacheConfig,
    SchedulerConfig,
    ParallelConfig,
    CompileConfig,
    KernelConfig,
    RecordConfig,
    SpeculationConfig,
    LoraConfig,
    ServerConfig,
)
FIELDS = [(config, item.name) for config in CONFIGS for item in fields(config) if item.metadata.get("flag", True)]
SPECIAL: dict[str, Any] = {"gpu_memory_fraction": 0.25, "max_num_batched_tokens": 1000, "max_num_seqs": 7}
SPECIAL |= {"host": "::1", "otlp_endpoint": "https://[::1]:4317"}
SPECIAL |= {"low_watermark": 0.015, "high_watermark": 0.25, "attention_kernel": "xla@0-3", "kv_write_kernel": "xla"}
SPECIAL |= {"allowed_hosts": "llm.example.com", "allowed_origins": "https://a.example,null"}
SPECIAL |= {"speculative_config": '{"method": "suffix"}', "kv_events_config": '{"topic": "kv"}'}
SPECIAL |= {"hf_overrides": '{"is_matryoshka": true}'}
SPECIAL |= {"served_model_name": ("one", "two"), "grouped_matmul_kernel": "xla@1"}
SPECIAL |= {"lora_modules": ("one=here", "two=there"), "max_lora_rank": 64, "max_loras": 32}
TLS = {"tls_cert": "cert.pem", "tls_key": "key.pem"}
COMPANIONS: dict[str, dict[str, Any]] = {
    "tls_cert": TLS,
    "tls_key": TLS,
    "tls_client_ca": {**TLS, "tls_client_ca": "some text"},
    "lora_experts": {"lora_experts": True, "enable_lora": True},
    "lora_modules": {"lora_modules": ("one=here", "two=there"), "enable_lora": True},
    "lora_dir": {"lora_dir": "some text", "enable_lora": True},
    "expert_parallel_size": {"expert_parallel_size": 4, "tensor_parallel_size": 8},
}  # settings that need others


def parse(*arguments):
    parser = argparse.ArgumentParser(prog="prog")
    add_flags(parser, *CONFIGS)
    return parser.parse_args(arguments)


def other_value(config, name):
    """A valid value that is not the field's default."""
    hint, default = get_type_hints(config)[name], getattr(config(), name)
    if name in SPECIAL:
        return SPECIAL[name]
    if get_origin(hint) is Literal:
        return next(choice for choice in get_args(hint) if choice != default)
    kind = next((part for part in get_args(hint) if part is not type(None)), hint)
    if kind is bool:
        return not default
    return {int: 321, float: 12.5, str: "some text"}[kind]


def arguments_for(config, name, value):
    if isinstance(value, tuple):
        return ["--" + name.replace("_", "-"), *value]
    positional = next(item for item in fields(config) if item.name == name).metadata.get("positional")
    flag = "--" + name.replace("_", "-")
    if positional:
        return [str(value)]
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    return [flag, str(value)]


def test_no_flag_gives_the_defaults():
    arguments = parse()
    for config in CONFIGS:
        assert from_flags(config, vars(arguments)) == config()


@pytest.mark.parametrize(("config", "name"), FIELDS)
def test_every_field_round_trips(config, name):
    value = other_value(config, name)
    given = COMPANIONS.get(name, {name: value})
    value = given[name]
    arguments = parse(*(word for pair in given.items() for word in arguments_for(config, *pair)))
    parsed = from_flags(config, vars(arguments))
    assert parsed == config(**given)
    assert type(getattr(parsed, name)) is type(value)
    for other in CONFIGS:
        if other is not config:
            assert from_flags(other, vars(arguments)) == other()


def test_all_flags_at_once():
    given = {config: {name: other_value(config, name) for owner, name in FIELDS if owner is config} for config in CONFIGS}
    flat = [word for config, values in given.items() for pair in values.items() for word in arguments_for(config, *pair)]
    arguments = parse(*flat)
    assert [from_flags(config, vars(arguments)) for config in CONFIGS] == [config(**values) for config, values in given.items()]


def test_settings_go_to_the_part_that_has_them():
    assert EngineConfig.from_settings({}) == EngineConfig()
    engine = [config for config in CONFIGS if config is not ServerConfig]
    settings = {name: other_value(config, name) for config, name in FIELDS if config in engine}
    built = EngineConfig.from_settings(settings)
    parts = [getattr(built, item.name) for item in fields(EngineConfig)]
    assert {type(part) for part in parts} == set(engine)
    for part in parts:
        assert part == type(part)(**{name: settings[name] for owner, name in FIELDS if owner is type(part)})


def test_a_setting_without_a_flag_is_one_all_the_same():
    assert "tenant_keys" not in vars(parse())
    assert EngineConfig.from_settings({"tenant_keys": "keys.toml"}).scheduler.tenant_keys == "keys.toml"


def test_an_unknown_setting_is_named():
    with pytest.raises(ConfigError, match=r"unknown setting 'port'; known are .*max_num_seqs") as refused:
        EngineConfig.from_settings({"port": 8000})
    assert refused.value.param == "port"


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("dtype", "float8", "one of 'auto', 'bfloat16', 'float16', 'float32', got 'float8'"),
        ("dtype", None, "one of 'auto'"),
        ("max_model_len", 12.0, "an integer or None, got 12.0"),
        ("max_model_len", True, "an integer or None, got True"),
        ("max_num_seqs", None, "an integer, got None"),
        ("max_num_seqs", "8", "an integer, got '8'"),
        ("gpu_memory_fraction", "0.5", "a number, got '0.5'"),
        ("prefix_caching", 1, "True or False, got 1"),
        ("tokenizer", 5, "a string or None, got 5"),
        ("model", None, "a string, got None"),
    ],
)
def test_a_setting_of_a_wrong_type_is_named(name, value, wanted):
    with pytest.raises(ConfigError, match=f"{name} must be {wanted}") as refused:
        EngineConfig.from_settings({name: value})
    assert refused.value.param == name


def test_an_integer_is_a_number():
    assert EngineConfig.from_settings({"gpu_memory_fraction": 1}).cache.gpu_memory_fraction == 1


def test_names_are_unique_over_all_parts():
    """Flags and the offline API's settings are one flat list of names."""
    names = [name for _, name in FIELDS]
    assert len(names) == len(set(names))
    parts = get_type_hints(EngineConfig).values()
    assert set(parts) | {ServerConfig} == set(CONFIGS)


def test_booleans_go_both_ways():
    assert from_flags(CacheConfig, vars(parse("--prefix-caching"))).prefix_caching is True
    assert from_flags(CacheConfig, vars(parse("--no-prefix-caching"))).prefix_caching is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dtype", "float8"], r"argument --dtype: invalid choice: 'float8' \(choose from .*bfloat16.*\)"),
        (["--max-num-seqs", "many"], "argument --max-num-seqs: invalid int value: 'many'"),
        (["--max-num-seqs", "1.5"], "argument --max-num-seqs: invalid int value: '1.5'"),
        (["--max-model-len", "x"], "argument --max-model-len: invalid int value: 'x'"),
        (["--kv-cache-memory-gib", "x"], "argument --kv-cache-memory-gib: invalid float value: 'x'"),
        (["--page-size"], "argument --page-size: expected one argument"),
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["model", "another"], "unrecognized arguments: another"),
    ],
)
def test_bad_flags_exit_with_a_message(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(*arguments)
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(f"prog: error: {message}", last)


def test_help_names_every_field_with_its_default(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")  # no line is broken
    with pytest.raises(SystemExit):
        parse("--help")
    text = capsys.readouterr().out
    for config, name in FIELDS:
        item = next(item for item in fields(config) if item.name == name)
        assert item.metadata["help"] in text, name
    assert "(default: 8000)" in text
    assert "(default: on)" in text


@pytest.mark.parametrize(
    ("config", "name", "value", "limit"),
    [
        (ModelConfig, "max_model_len", 1, "at least 2, got 1"),
        (ModelConfig, "recheck_weights_minutes", -1.0, "between 0 and 525600, got -1.0"),
        (ModelConfig, "recheck_weights_minutes", float("nan"), "between 0 and 525600, got nan"),
        (CacheConfig, "page_size", 0, "at least 1, got 0"),
        (CacheConfig, "num_pages", 1, "at least 2, got 1"),
        (CacheConfig, "gpu_memory_fraction", 0.0, r"in \(0, 1\], got 0.0"),
        (CacheConfig, "gpu_memory_fraction", 1.5, r"in \(0, 1\]"),
        (CacheConfig, "gpu_memory_fraction", float("nan"), r"in \(0, 1\]"),
        (CacheConfig, "kv_cache_memory_gib", float("nan"), "above 0 and finite, got nan"),
        (CacheConfig, "kv_cache_memory_gib", float("inf"), "above 0 and finite, got inf"),
        (CacheConfig, "kv_cache_memory_gib", -1.0, "above 0 and finite, got -1.0"),
        (SchedulerConfig, "max_num_seqs", 0, "at least 1, got 0"),
        (SchedulerConfig, "max_num_batched_tokens", 31, "at least 32, got 31"),
        (SchedulerConfig, "long_prefill_token_threshold", -1, "at least 0, got -1"),
        (SchedulerConfig, "max_waiting", 0, "at least 1, got 0"),
        (ParallelConfig, "tensor_parallel_size", 0, "at least 1, got 0"),
        (ParallelConfig, "expert_parallel_size", 0, "at least 1, got 0"),
        (ServerConfig, "port", 65536, "between 0 and 65535, got 65536"),
        (ServerConfig, "grpc_port", -1, "between 0 and 65535, got -1"),
        (ServerConfig, "drain_timeout", -0.5, "at least 0, got -0.5"),
        (ServerConfig, "drain_timeout", float("nan"), "at least 0, got nan"),
        (ServerConfig, "drain_timeout", float("inf"), "finite, got inf"),
        (ServerConfig, "max_file_mib", 0, "at least 1, got 0"),
        (ServerConfig, "max_batch_lines", -1, "at least 1, got -1"),
        (ServerConfig, "idempotency_grace", -1.0, "at least 0, got -1.0"),
        (ServerConfig, "idempotency_grace", float("inf"), "finite, got inf"),
        (ServerConfig, "stream_grace", -1.0, "at least 0, got -1.0"),
        (ServerConfig, "stream_grace", float("inf"), "finite, got inf"),
        (ServerConfig, "file_days", 0.0, "above 0 and at most 36500, got 0.0"),
        (ServerConfig, "file_days", float("nan"), "above 0 and at most 36500, got nan"),
        (ServerConfig, "file_days", 1e6, "above 0 and at most 36500"),
        (ServerConfig, "otlp_endpoint", "", "a URL"),
        (ServerConfig, "otlp_endpoint", "localhost:4317", "a URL"),
        (ServerConfig, "otlp_endpoint", "ftp://x:1", "a URL"),
        (ServerConfig, "otlp_endpoint", "http://", "a URL"),
        (ServerConfig, "otlp_endpoint", "http://[::bad", "a URL"),
        (ServerConfig, "otlp_endpoint", "http://x:99999999", "a URL"),
    ],
)
def test_impossible_values_name_the_field_and_the_limit(config, name, value, limit):
    with pytest.raises(ConfigError, match=f"^{name} must be {limit}") as refused:
        from_flags(config, vars(parse(*arguments_for(config, name, value))))
    assert refused.value.param == name


@pytest.mark.parametrize("setting", [{"lora_modules": ("one=here",)}, {"lora_experts": True}])
def test_settings_of_adapters_need_adapters(setting):
    with pytest.raises(ConfigError, match=f"{next(iter(setting))} needs enable_lora"):
        LoraConfig(**setting)


def test_groups_of_experts_divide_the_devices():
    with pytest.raises(
        ConfigError, match="expert_parallel_size 4 does not divide tensor_parallel_size 6; sizes that fit: 1, 2, 3, 6"
    ):
        ParallelConfig(tensor_parallel_size=6, expert_parallel_size=4)


@pytest.mark.parametrize("setting", [{"verify_weights": True}, {"recheck_weights_minutes": 5.0}])
def test_dummy_weights_have_nothing_to_be_compared_with(setting):
    with pytest.raises(ConfigError, match=f"{next(iter(setting))} needs a checkpoint, and load_format is 'dummy'"):
        ModelConfig(load_format="dummy", **setting)
    ModelConfig(load_format="orbax", **setting)
