"""What refuses quantized checkpoints that lost too much: at the start, before weights are loaded."""

import dataclasses
import json
import shutil

import pytest

from jaxserve.config.fields import EngineConfig, ModelConfig
from jaxserve.engine.preparation import prepare
from jaxserve.errors import CheckpointError, ConfigError
from jaxserve.weights.conversion import Source, convert, make_manifest
from jaxserve.weights.manifest import Manifest, ProductError, Quality, read_manifest, write_manifest
from jaxserve.weights.quality import check_quality
from tests.golden.reading import DATA

QUALITY = Quality(
    scheme="int8",
    calibration="f00d",
    tokens=511,
    perplexity_before=10.0,
    perplexity_after=10.125,
    increase_percent=1.25,
    kept=("lm_head",),
    errors={"layers.0.mlp.down": ProductError(0.5, 0.01, 0.999)},
)


@pytest.fixture
def quantized(tmp_path):
    source = shutil.copytree(DATA / "qwen2-int8", tmp_path / "model")
    manifest = make_manifest(source, lambda *_: None)
    write_manifest(source, Manifest.of(manifest.tokenizer, manifest.tensors, manifest.prompt_files or {}, QUALITY))
    return source


def test_what_lost_little_enough_is_served(quantized):
    check_quality(quantized, 1.25, "none")
    prepare(EngineConfig.from_settings({"model": str(quantized), "require_quality": 2.0}))


def test_what_lost_too_much_is_not_even_loaded(quantized):
    (quantized / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"require_quality 1\.2: .* has 1\.25 % more .* --scheme int8 .* --budget 1\.2"):
        prepare(EngineConfig.from_settings({"model": str(quantized), "require_quality": 1.2}))


@pytest.mark.parametrize("manifest", [True, False])
def test_what_nobody_measured_is_refused(tmp_path, manifest):
    model = shutil.copytree(DATA / "qwen2-int8", tmp_path / "model")
    if manifest:
        make_manifest(model, lambda *_: None)
    with pytest.raises(
        CheckpointError, match=r"is quantized, and has no jaxserve-manifest\.json that says what it lost; `python"
    ):
        check_quality(model, 100.0, "none")


def test_a_model_that_is_not_quantized_lost_nothing():
    check_quality(DATA / "llama-linear", 0.0, "none")


@pytest.mark.parametrize(
    "method",
    [
        {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
        {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"},
    ],
)
def test_a_model_that_quantizes_its_cache_alone_lost_nothing_either(tmp_path, method):
    config = json.loads((DATA / "llama-linear" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": method}))
    check_quality(tmp_path, 0.0, "none")


@pytest.mark.parametrize("quantization", ["int8", "w8a8", "int4"])
def test_what_is_rounded_while_it_is_loaded_was_not_measured(quantized, quantization):
    for model in (DATA / "llama-linear", quantized):
        with pytest.raises(ConfigError, match=f"quantization '{quantization}' rounds weights while they are loaded"):
            check_quality(model, 100.0, quantization)


def _manifest(model):
    manifest = read_manifest(model)
    assert manifest is not None
    return manifest


def _fields(quality):
    return {name: getattr(quality, name) for name in quality.__struct_fields__}


def test_other_manifests_of_the_same_tensors_keep_it(quantized, tmp_path):
    make_manifest(quantized, lambda *_: None)
    assert _manifest(quantized).quality == QUALITY
    assert convert(Source(path=quantized), tmp_path / "orbax", None, lambda *_: None).quality == QUALITY
    assert convert(Source(path=quantized), tmp_path / "plain", "float32", lambda *_: None).quality is None


def test_other_tensors_were_not_measured(quantized):
    document = json.loads((quantized / "jaxserve-manifest.json").read_text())
    next(iter(document["tensors"].values()))["sha256"] = "other"
    (quantized / "jaxserve-manifest.json").write_text(json.dumps(document))
    assert make_manifest(quantized, lambda *_: None).quality is None
    (quantized / "jaxserve-manifest.json").write_text("{")
    assert make_manifest(quantized, lambda *_: None).quality is None


@pytest.mark.parametrize("percent", [-1.0, float("nan"), float("inf")])
def test_percents_that_mean_nothing_are_refused(percent):
    with pytest.raises(ConfigError, match="require_quality must be at least 0 and finite"):
        dataclasses.replace(ModelConfig(), require_quality=percent)


def test_dummy_weights_have_no_quality():
    with pytest.raises(ConfigError, match="require_quality needs a checkpoint, and load_format is 'dummy'"):
        ModelConfig(require_quality=0.0, load_format="dummy")
