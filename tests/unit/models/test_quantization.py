import pytest

from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.models.quantization import MXFP4, BlockFP8, quantization_from_hf

DEEPSEEK = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
QWEN = {**DEEPSEEK, "weight_block_size": [64, 128], "modules_to_not_convert": ["lm_head"]}
SAVED = {**DEEPSEEK, "scale_fmt": "float", "expert_dtype": "fp8", "dequantize": False, "modules_to_convert": None}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (None, None),
        (DEEPSEEK, BlockFP8((128, 128))),
        (QWEN, BlockFP8((64, 128))),
        (SAVED, BlockFP8((128, 128))),
        ({**DEEPSEEK, "scale_fmt": "ue8m0"}, BlockFP8((128, 128))),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}, MXFP4()),
    ],
)
def test_what_checkpoints_say(given, read):
    assert quantization_from_hf({"quantization_config": given}) == read


def test_no_quantization():
    assert quantization_from_hf({}) is None


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"quant_method": "awq"}, "quant_method='awq'.*supported are mxfp4, fp8"),
        ({"bits": 4}, "quant_method=None"),
        ({"quant_method": ["fp8"]}, "quant_method"),
        ({**DEEPSEEK, "fmt": "e5m2"}, "fmt='e5m2'"),
        ({**DEEPSEEK, "activation_scheme": "static"}, "activation_scheme='static'"),
        ({**DEEPSEEK, "scale_fmt": "int"}, "scale_fmt"),
        ({**DEEPSEEK, "expert_dtype": "fp4"}, "expert_dtype='fp4'"),
        ({**DEEPSEEK, "weight_block_size": None}, "weight_block_size"),
        ({**DEEPSEEK, "kv_cache_scheme": {"bits": 8}}, "kv_cache_scheme"),
        ({"quant_method": "mxfp4", "weight_block_size": [1, 32]}, "weight_block_size"),
    ],
)
def test_what_is_not_read_is_refused_by_name(given, names):
    with pytest.raises(UnsupportedModelError, match=names):
        quantization_from_hf({"quantization_config": given})


@pytest.mark.parametrize("sizes", [[128], [128, 0], [128, True], "128", [128, 128.0], 128])
def test_impossible_block_sizes_are_named(sizes):
    with pytest.raises(CheckpointError, match="weight_block_size must be two positive integers"):
        quantization_from_hf({"quantization_config": {**DEEPSEEK, "weight_block_size": sizes}})


def test_a_description_that_is_no_object():
    with pytest.raises(CheckpointError, match="quantization_config must be an object, got 'fp8'"):
        quantization_from_hf({"quantization_config": "fp8"})
