"""A fingerprint follows the numbers, not the place they are kept at."""

import os
import shutil
from dataclasses import replace

import pytest

from jaxserve.config.fields import ModelConfig
from jaxserve.models.registry import decoder_config
from jaxserve.weights.fingerprint import model_fingerprint

HF = {"architectures": ["Qwen2ForCausalLM"], "vocab_size": 101, "hidden_size": 16, "intermediate_size": 24}
CONFIG = decoder_config(HF | {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2})
SIZE = 3 * 2**20


@pytest.fixture
def checkpoint(tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "a.safetensors").write_bytes(bytes(SIZE))
    (directory / "b.safetensors").write_bytes(b"small")
    return directory


def of(directory, config=CONFIG, load_format="safetensors", seed=0, quantization="none"):
    return model_fingerprint(directory, config, ModelConfig(load_format=load_format, seed=seed, quantization=quantization))


def test_a_copy_has_the_same(checkpoint, tmp_path):
    copy = shutil.copytree(checkpoint, tmp_path / "copy")
    os.utime(copy / "a.safetensors", (0, 0))
    assert of(copy) == of(checkpoint)
    assert of(checkpoint, seed=1) == of(checkpoint)


@pytest.mark.parametrize("load_format", ["safetensors", "dummy"])
def test_rounded_weights_have_another(checkpoint, load_format):
    assert of(checkpoint, load_format=load_format, quantization="int8") != of(checkpoint, load_format=load_format)


@pytest.mark.parametrize("place", [0, 2**20 - 1, SIZE - 2**20, SIZE - 1])
def test_other_weights_have_another(checkpoint, place):
    before = of(checkpoint)
    with (checkpoint / "a.safetensors").open("r+b") as file:
        file.seek(place)
        file.write(b"x")
    assert of(checkpoint) != before


@pytest.mark.parametrize("change", ["longer", "renamed", "missing", "small"])
def test_other_files_have_another(checkpoint, change):
    before = of(checkpoint)
    if change == "longer":
        (checkpoint / "a.safetensors").write_bytes(bytes(SIZE + 1))
    elif change == "renamed":
        (checkpoint / "b.safetensors").rename(checkpoint / "c.safetensors")
    elif change == "missing":
        (checkpoint / "b.safetensors").unlink()
    else:
        (checkpoint / "b.safetensors").write_bytes(b"smell")
    assert of(checkpoint) != before


def test_another_config_has_another(checkpoint):
    assert of(checkpoint, replace(CONFIG, norm_eps=0.5)) != of(checkpoint)


def test_dummy_weights_follow_from_the_seed(checkpoint, tmp_path):
    first = of(checkpoint, load_format="dummy", seed=1)
    assert first == of(tmp_path, load_format="dummy", seed=1)
    assert first != of(checkpoint, load_format="dummy", seed=2)
    assert first != of(checkpoint)


def test_of_orbax_every_file_counts(checkpoint, tmp_path):
    data = checkpoint / "orbax" / "d"
    data.mkdir(parents=True)
    (checkpoint / "orbax" / "_METADATA").write_text("{}")
    (data / "f00d").write_bytes(b"chunks")
    before = of(checkpoint, load_format="orbax")
    assert of(shutil.copytree(checkpoint, tmp_path / "copy"), load_format="orbax") == before
    assert before != of(checkpoint)
    (data / "f00d").write_bytes(b"chunk5")
    assert of(checkpoint, load_format="orbax") != before


def test_by_default_it_is_of_what_would_be_loaded(checkpoint):
    (checkpoint / "orbax").mkdir()
    (checkpoint / "orbax" / "_METADATA").write_text("{}")
    (checkpoint / "a.safetensors").rename(checkpoint / "model.safetensors")
    assert of(checkpoint, load_format="auto") == of(checkpoint)
    (checkpoint / "model.safetensors").unlink()
    assert of(checkpoint, load_format="auto") == of(checkpoint, load_format="orbax")
