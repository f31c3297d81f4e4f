"""--speculative-config: vLLM's fields, and what is said of what is not here."""

import json

import pytest

from jaxserve.config.fields import EngineConfig
from jaxserve.config.speculative import SpeculationConfig, SpeculativeConfig
from jaxserve.errors import ConfigError


def parsed(**given):
    return SpeculationConfig(speculative_config=json.dumps(given)).parse()


def test_nothing_is_asked_for_by_default():
    assert SpeculationConfig().parse() is None
    assert SpeculationConfig().max_drafts == 0
    assert parsed(method="none") is None


@pytest.mark.parametrize(
    ("given", "least", "most"),
    [
        ({}, 5, 5),
        ({"prompt_lookup_max": 4}, 4, 4),
        ({"prompt_lookup_min": 2}, 2, 2),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 4}, 2, 4),
        ({"prompt_lookup_min": None, "prompt_lookup_max": 3}, 3, 3),
    ],
)
def test_n_grams(given, least, most):
    """Defaults are vLLM's."""
    config = parsed(method="ngram", num_speculative_tokens=3, **given)
    assert (config.prompt_lookup_min, config.prompt_lookup_max) == (least, most)


def test_a_method_is_known_by_its_fields():
    assert parsed(num_speculative_tokens=3, prompt_lookup_max=4).method == "ngram"


def test_suffix():
    assert parsed(method="suffix") == SpeculativeConfig(
        method="suffix", num_speculative_tokens=8, prompt_lookup_min=5, prompt_lookup_max=5
    )
    config = parsed(method="suffix", num_speculative_tokens=4, suffix_decoding_min_token_prob=0.5)
    assert (config.num_speculative_tokens, config.suffix_decoding_min_token_prob) == (4, 0.5)


def test_a_model_guesses():
    config = parsed(model="/models/draft", num_speculative_tokens=3)
    assert (config.method, config.model, config.runs_model) == ("draft_model", "/models/draft", True)
    assert parsed(method="eagle3", model="/models/head", num_speculative_tokens=3).runs_model
    assert not parsed(method="suffix").runs_model


@pytest.mark.parametrize("method", ["mtp", "deepseek_mtp", "qwen3_next_mtp", "qwen3_5_mtp"])
def test_the_targets_own_module(method):
    """The number of tokens is vLLM's: one for each module."""
    config = parsed(method=method)
    assert (config.method, config.model, config.num_speculative_tokens, config.runs_model) == ("mtp", "", 1, True)
    assert parsed(method=method, model="/models/other", num_speculative_tokens=3).model == "/models/other"


def test_a_mapping_is_taken():
    config = EngineConfig.from_settings({"speculative_config": {"method": "ngram", "num_speculative_tokens": 6}})
    assert config.speculation.max_drafts == 6


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"method": "ngram"}, "num_speculative_tokens must be given"),
        ({"num_speculative_tokens": 4}, "method must be given"),
        ({"method": "eagle3", "num_speculative_tokens": 3}, "model must be given with the method 'eagle3'"),
        ({"method": "draft_model", "num_speculative_tokens": 3}, "model must be given with the method 'draft_model'"),
        ({"model": "draft"}, "num_speculative_tokens must be given with the method 'draft_model'"),
        ({"model": "draft", "num_speculative_tokens": 3, "quantization": "fp8"}, "quantization is not taken"),
        ({"model": "draft", "num_speculative_tokens": 3, "prompt_lookup_max": 4}, "belongs to the method 'ngram'"),
        ({"method": "ngram", "num_speculative_tokens": 3, "suffix_decoding_max_tree_depth": 4}, "belongs to the method 'suffix'"),
        ({"method": "mimo_mtp"}, "method 'mimo_mtp' is not there yet"),
        ({"method": "medusa"}, "method 'medusa' is not served"),
        ({"method": "guess"}, "method must be one of 'ngram', 'suffix', 'draft_model', 'eagle3', 'mtp', 'none', got 'guess'"),
        ({"method": "ngram", "model": "draft", "num_speculative_tokens": 3}, "model must not be given with the method 'ngram'"),
        ({"method": "ngram", "rejection_sample_method": "synthetic"}, "rejection_sample_method is for simulations alone"),
        ({"method": "ngram", "num_speculative_tokens_per_batch_size": []}, "what each step costs"),
        ({"method": "ngram", "tokens": 3}, "tokens is unknown; known are method, model, num_speculative_tokens"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens must be between 1 and 32, got 0"),
        ({"method": "ngram", "num_speculative_tokens": "4"}, "num_speculative_tokens must be an integer, got '4'"),
        (
            {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 5, "prompt_lookup_max": 4},
            "prompt_lookup_max must be between 5 and 1024, got 4",
        ),
        ({"method": "suffix", "suffix_decoding_min_token_prob": 2.0}, "between 0.0 and 1.0, got 2.0"),
        ({"method": "suffix", "suffix_decoding_max_spec_factor": float("nan")}, "got nan"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(given, complaint):
    with pytest.raises(ConfigError, match=complaint):
        parsed(**given)


@pytest.mark.parametrize(("text", "complaint"), [("{", "not JSON"), ("[1]", "must be a JSON object")])
def test_what_is_no_object(text, complaint):
    with pytest.raises(ConfigError, match=complaint):
        SpeculationConfig(speculative_config=text)
