"""Regular expressions of files: `re`'s syntax and results, within limits of time and size."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.adapters.config import AdapterConfig
from jaxserve.errors import CheckpointError
from jaxserve.models.quantization import quantization_from_hf
from jaxserve.models.quantization_methods import CompressedTensors
from jaxserve.patterns import MAX_CHARS, TimeBudget, compile_pattern

SLOW = r"(\w|\w|\w)*(?=!)"
MODULE = "layers.0.self_attn.q_proj." + "a" * 30
NAMES = ["q_proj", "a.b", "layers.1.q", "layers.10.q_proj", "model.layers.3.mlp.experts.7.w2", "a{e}", "a:b", ""]
PARTS = ["a", "b", r"\.", ".", "layers", "q_proj", r"\d", r"\w", "[0-9]", "[^.]", "(?!1)", "(?=q)", "|", "*", "+", "?", "{2}"]
PARTS += ["{1,}", "{,2}", "{e}", "{", "}", "(?:", "(", ")", "$", "^", r"\b", r"\Z", "{}", "[{e}]", "[a:]", r"\{", "(?i:A)"]


def adapter(**fields: object) -> AdapterConfig:
    return AdapterConfig.parse({"peft_type": "LORA", "r": 8, "lora_alpha": 16, **fields}, "a/adapter_config.json")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PARTS), min_size=1, max_size=5).map("".join))
def test_results_are_those_of_re(text: str) -> None:
    whole = rf"(.*\.)?({text})$"
    try:
        expected = [bool(re.match(whole, name)) for name in NAMES]
    except re.error:
        with pytest.raises(CheckpointError, match="no regular expression"):
            compile_pattern("rank_pattern", text, TimeBudget("file"), r"(.*\.)?({})$")
        return
    pattern = compile_pattern("rank_pattern", text, TimeBudget("file"), r"(.*\.)?({})$")
    assert [pattern.match(name) for name in NAMES] == expected
    ranks = adapter(rank_pattern={text: 3})
    assert [ranks.rank_of(name) == 3 for name in NAMES] == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(", "no regular expression"),
        ("(?i)a", "no regular expression"),  # not at the start of the expression that PEFT matches
        ("(" * 400 + ")" * 400, "no regular expression"),
        ("a" * (MAX_CHARS + 1), f"may have {MAX_CHARS}"),
        ("(?:(?:x{5000}){5000})", "expands to"),
        ("[[:alpha:]]", "classes of POSIX"),
    ],
)
def test_unfit_expressions_are_refused_by_name(text: str, words: str) -> None:
    with pytest.raises(CheckpointError, match=f"adapter_config.json: alpha_pattern: .*{words}"):
        adapter(alpha_pattern={text + "(?:)": 2})


def test_an_expression_that_backtracks_is_refused_after_its_time() -> None:
    budget = TimeBudget("a/adapter_config.json", seconds=0.01)
    slow, plain = (compile_pattern("rank_pattern", text, budget) for text in (SLOW, "layers"))
    assert plain.match(MODULE)
    with pytest.raises(CheckpointError, match=r"a/adapter_config.json: rank_pattern: .*\(\?=!\).* takes too long"):
        slow.match("a" * 40)
    with pytest.raises(CheckpointError, match="takes too long"):  # one budget for a file
        plain.match(MODULE)


def test_adapters_and_checkpoints_match_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxserve.patterns.SECONDS", 0.05)
    config = adapter(rank_pattern={SLOW: 4}, alpha_pattern={SLOW: 4})
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    group = {"targets": [rf"re:.*\.{SLOW}"], "weights": weights, "format": "float-quantized"}
    told = {"quant_method": "compressed-tensors", "quantization_status": "compressed", "config_groups": {"group_0": group}}
    method = quantization_from_hf({"quantization_config": told})
    assert isinstance(method, CompressedTensors)
    for match in (config.rank_of, config.scale_of, method.group_of):
        with pytest.raises(CheckpointError, match="takes too long"):
            match(MODULE)


def test_too_many_patterns_are_refused() -> None:
    with pytest.raises(CheckpointError, match="rank_pattern has 5000 patterns, but may have 4096"):
        adapter(rank_pattern={f"layers.{index}": 1 for index in range(5000)})
