"""Whole checkpoints: what is written is served as transformers reads it, and mistakes leave nothing behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxserve import quantize
from jaxserve.errors import CheckpointError
from jaxserve.quantization.checkpoint import nearest, open_model, write_quantized
from jaxserve.quantization.recipes import RECIPES
from jaxserve.quantization.selection import select
from jaxserve.weights.checkpoint import whole
from jaxserve.weights.manifest import Manifest, TensorSum, read_manifest
from jaxserve.weights.safetensors import SafetensorsCheckpoint
from tests.golden import make_quantized
from tests.golden.reading import DATA, check_greedy, forward, load, read_golden

GOLDENS = json.loads(make_quantized.DATA.read_text())
CASES = [(model, scheme) for model, schemes in make_quantized.CASES.items() for scheme in schemes]
LLAMA = DATA / "llama-linear"


@pytest.mark.parametrize(("model", "scheme"), CASES)
def test_tokens_are_those_of_transformers(tmp_path: Path, model: str, scheme: str) -> None:
    assert quantize.main(make_quantized.arguments(model, scheme, tmp_path)) == 0
    golden = GOLDENS[f"{model}-{scheme}"]
    written = tmp_path / f"{model}-{scheme}"
    assert make_quantized.digest(written) == golden["digest"], "the same checkpoint, byte for byte"
    run, prompts = forward(*load(written)), read_golden(model).prompts
    assert len(golden["answers"]) >= 2
    for answer in golden["answers"]:
        check_greedy(run, prompts[answer["prompt"]], answer["greedy"])


def quantized(source: Path, output: Path, scheme: str = "int8", file_bytes: int = 10**9) -> Manifest:
    recipe = RECIPES[scheme]  # type: ignore[index]
    with open_model(source) as model:
        selection = select(model.config, model.tensors, recipe, ())
        rounding = nearest(model, recipe)
        return write_quantized(model, output, recipe, selection, rounding, lambda *_: None, file_bytes=file_bytes)


def test_other_tensors_and_files_stay_as_they_are(tmp_path: Path) -> None:
    manifest = quantized(LLAMA, tmp_path / "out", file_bytes=30_000)
    assert len(list((tmp_path / "out").glob("model-*-of-*.safetensors"))) > 1
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (LLAMA / "tokenizer.json").read_bytes()
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config.pop("quantization_config")["ignore"] == ["lm_head"]
    assert config == json.loads((LLAMA / "config.json").read_text())
    with SafetensorsCheckpoint(LLAMA) as before, SafetensorsCheckpoint(tmp_path / "out") as after:
        kept = [name for name in before.shapes if "_proj" not in name]
        assert len(kept) == 7
        for name in kept:
            block = whole(before.shapes[name])
            np.testing.assert_array_equal(before.read(name, block), after.read(name, block))
        sums = {name: TensorSum.of(after.read(name, whole(shape))) for name, shape in after.shapes.items()}
    assert read_manifest(tmp_path / "out") == manifest
    assert manifest.tensors == sums


def test_a_checkpoint_that_quantizes_its_cache_alone_is_not_quantized_yet(tmp_path: Path) -> None:
    """Its scales of the cache are left out: they went with activations that are rounded now."""
    source = shutil.copytree(DATA / "qwen2-gqa7", tmp_path / "source")
    method = {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"quantization_config": method}))
    scale = {"model.layers.0.self_attn.k_scale": np.ones(1, np.float32)}
    save_file(scale, source / "scales.safetensors")
    with SafetensorsCheckpoint(DATA / "qwen2-gqa7") as before:
        files = dict.fromkeys(before.shapes, "model.safetensors") | dict.fromkeys(scale, "scales.safetensors")
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    quantized(source, tmp_path / "out")
    quantized(DATA / "qwen2-gqa7", tmp_path / "plain")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
    load(tmp_path / "out")


def test_weights_that_are_not_finite_leave_nothing_behind(tmp_path: Path) -> None:
    source = shutil.copytree(DATA / "qwen2-gqa7", tmp_path / "source")
    path = source / "model.safetensors"
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[:8], "little")
    start = json.loads(data[8 : 8 + length])["model.layers.1.mlp.up_proj.weight"]["data_offsets"][0]
    data[8 + length + start : 12 + length + start] = np.float32(np.nan).tobytes()
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.up_proj\.weight has weights that are NaN or infinite"):
        quantized(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
