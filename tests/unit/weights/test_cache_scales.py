"""A checkpoint's scales of KV caches change no weight; those that are none are named."""

import json
import logging

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxserve.models.quantization import quantization_from_hf
from jaxserve.models.quantization_methods import CacheAlone
from tests.unit.weights.test_quantized_checkpoint import QWEN3, assert_equal, params_of, write_fp8

# As compressed-tensors and ModelOpt call them, for all heads or each.
PLACES = ("self_attn.k_scale", "self_attn.v_scale", "self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale")
CACHE = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}


def scales(**changed: float) -> dict[str, np.ndarray]:
    found = {f"model.layers.{layer}.{place}": np.full((1,), 0.02, np.float32) for layer in range(2) for place in PLACES}
    found["model.layers.1.self_attn.v_scale"] = np.full((2,), 0.5, ml_dtypes.bfloat16)
    found |= {f"model.layers.0.self_attn.{name}": np.full((), value, np.float32) for name, value in changed.items()}
    return found


@pytest.mark.format("quantized", "`k_scale`, `v_scale`, `kv_scale` of FP8 caches: read past, with a line in the log", "read")
def test_sound_scales_are_read_past(tmp_path, caplog):
    plain, _ = write_fp8(tmp_path / "plain")
    directory, _ = write_fp8(tmp_path / "scales", **scales())
    with caplog.at_level(logging.WARNING):
        assert_equal(params_of(directory, "float32", 1), params_of(plain, "float32", 1))
    assert not caplog.records


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 0.0, -1.0])
def test_what_is_no_scale_is_named_and_loads_all_the_same(tmp_path, caplog, wrong):
    directory, _ = write_fp8(tmp_path / "scales", **scales(k_scale=wrong, q_scale=wrong))
    with caplog.at_level(logging.WARNING):
        params_of(directory, "float32", 1)
    (record,) = caplog.records
    named = "model.layers.0.self_attn.k_scale, model.layers.0.self_attn.q_scale"
    assert record.message == (
        f"2 of the checkpoint's 9 scales of KV caches are NaN, infinite or not above 0: {named}. None is used: a cache in 8 bits "
        "has a scale for each token"
    )


@pytest.mark.parametrize(
    "said",
    [
        {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": CACHE},
        {"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8"},
    ],
)
def test_a_checkpoint_that_quantizes_its_cache_alone(tmp_path, said):
    """Its weights are what they are without."""
    _, meant = write_fp8(tmp_path / "fp8")
    for name, added, quantization in (("plain", {}, None), ("scales", scales(), said)):
        (tmp_path / name).mkdir()
        save_file(meant | added, tmp_path / name / "model.safetensors")
        (tmp_path / name / "config.json").write_text(json.dumps(QWEN3 | {"quantization_config": quantization}))
    assert quantization_from_hf({"quantization_config": said}) == CacheAlone()
    assert_equal(params_of(tmp_path / "scales", "float32", 1), params_of(tmp_path / "plain", "float32", 1))
