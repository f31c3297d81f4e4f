"""generation_config.json: what is read of it, what is refused, and how long an output is where nobody says."""

import json

import pytest

from jaxserve.config.fields import ModelConfig
from jaxserve.engine.preparation import generation_defaults
from jaxserve.errors import CheckpointError
from jaxserve.sampling.defaults import NO_DEFAULTS, SamplingDefaults

# As Qwen3, Llama 3.1 and Gemma 3 publish it: with fields that are not sampling parameters.
PUBLISHED = {
    "bos_token_id": 7,
    "do_sample": True,
    "eos_token_id": [8, 9],
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "max_length": None,
    "cache_implementation": "hybrid",
    "transformers_version": "4.51.0",
}


def read(directory, values, **settings):
    (directory / "generation_config.json").write_text(json.dumps(values))
    return generation_defaults(ModelConfig(**settings), directory)


def test_the_published_form(tmp_path):
    assert read(tmp_path, PUBLISHED) == (SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95), None)
    more = {"min_p": 0.1, "repetition_penalty": 1.1, "max_new_tokens": 2048, "top_k": None}
    expected = SamplingDefaults(temperature=0.6, top_p=0.95, min_p=0.1, repetition_penalty=1.1)
    assert read(tmp_path, PUBLISHED | more) == (expected, 2048)


def test_no_file_or_not_wanted(tmp_path):
    assert generation_defaults(ModelConfig(), tmp_path) == (NO_DEFAULTS, None)
    assert read(tmp_path, PUBLISHED, generation_config="none") == (NO_DEFAULTS, None)
    assert NO_DEFAULTS.given() == {}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"temperature": "0.6"}, "temperature must be a finite number"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0.0"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"top_k": 1.5}, "top_k must be an integer"),
    ],
)
def test_impossible_values_name_the_file(tmp_path, value, message):
    with pytest.raises(CheckpointError, match=rf"generation_config\.json: {message}; generation_config=none"):
        read(tmp_path, value)
