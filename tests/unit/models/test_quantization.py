import json

import pytest

from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.quantization import quantization_from_hf
from jaxserve.models.quantization_methods import (
    AWQ,
    GPTQ,
    MXFP4,
    BlockFP8,
    CacheAlone,
    CompressedTensors,
    ModelOpt,
    ScaledFP8,
    WeightGroup,
)

DEEPSEEK = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
QWEN = {**DEEPSEEK, "weight_block_size": [64, 128], "modules_to_not_convert": ["lm_head"]}
SAVED = {**DEEPSEEK, "scale_fmt": "float", "expert_dtype": "fp8", "dequantize": False, "modules_to_convert": None}
STATIC = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}
AWQ_GEMM = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm", "backend": "autoawq"}
GPTQ_V1 = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True, "damp_percent": 0.01}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "kv_cache_quant_algo": "FP8", "ignore": []}


def linear(weights, form="pack-quantized", targets=("Linear",)):
    return {"targets": list(targets), "weights": weights, "input_activations": None, "format": form}


def compressed(*groups, **more):
    named = {f"group_{number}": group for number, group in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": named, "quantization_status": "compressed", **more}


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True, "actorder": "weight"}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
BLOCKS = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 64]}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (None, None),
        (DEEPSEEK, BlockFP8((128, 128))),
        (QWEN, BlockFP8((64, 128))),
        (SAVED, BlockFP8((128, 128))),
        ({**DEEPSEEK, "scale_fmt": "ue8m0"}, BlockFP8((128, 128))),
        (STATIC, ScaledFP8()),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}, MXFP4()),
        (AWQ_GEMM, AWQ(128)),
        ({**AWQ_GEMM, "group_size": -1, "version": "GEMM"}, AWQ(None)),
        (GPTQ_V1, GPTQ(4, 128, 1, ordered=True)),
        ({**GPTQ_V1, "checkpoint_format": "gptq_v2", "bits": 8, "group_size": -1, "dynamic": {}}, GPTQ(8, None, 0, ordered=True)),
        ({**GPTQ_V1, "desc_act": False}, GPTQ(4, 128, 1)),
        (MODELOPT, ModelOpt()),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, CacheAlone()),
        (compressed(kv_cache_scheme={"num_bits": 8, "type": "float"}), CacheAlone()),
        ({**MODELOPT, "quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "FP8"}}}, ModelOpt()),
    ],
)
def test_what_checkpoints_say(given, read):
    assert quantization_from_hf({"quantization_config": given}) == read


@pytest.mark.parametrize(
    ("weights", "form", "stored", "bits", "block"),
    [
        (INT4, "pack-quantized", "pack-quantized", 4, (1, 128)),
        ({**INT4, "group_size": -1}, "pack-quantized", "pack-quantized", 4, (1, None)),
        (FP8, "float-quantized", "quantized", 8, (1, None)),
        ({**FP8, "strategy": "tensor"}, "naive-quantized", "quantized", 8, (None, None)),
        (BLOCKS, "float-quantized", "quantized", 8, (128, 64)),
        ({**FP8, "type": "int"}, "int-quantized", "quantized", 8, (1, None)),
        (
            {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
            *["nvfp4-pack-quantized"] * 2,
            4,
            (1, 16),
        ),
    ],
)
def test_how_compressed_tensors_groups_are_read(weights, form, stored, bits, block):
    group = WeightGroup(("Linear",), stored, bits, block)
    for config in (compressed(linear(weights, form)), compressed(linear(weights, None), format=form)):
        assert quantization_from_hf({"quantization_config": config}) == CompressedTensors((group,))


@pytest.mark.parametrize(
    ("activations", "fp8"),
    [(None, False), ({"num_bits": 8, "type": "float", "dynamic": True}, True), ({"num_bits": 8, "type": "int"}, False)],
)
def test_activations_of_a_group_are_fp8_only_if_it_says_so(activations, fp8):
    group = linear(FP8, "float-quantized") | {"input_activations": activations}
    method = quantization_from_hf({"quantization_config": compressed(group)})
    assert isinstance(method, CompressedTensors)
    assert method.groups[0].fp8_activations == fp8


def test_the_closest_target_decides_a_modules_group():
    named, like = linear(FP8, "float-quantized", ("a.down_proj",)), linear(INT4, targets=("re:.*_proj$",))
    groups = (linear({**INT4, "num_bits": 8}), like, named)
    method = quantization_from_hf({"quantization_config": compressed(*groups)})
    alone = quantization_from_hf({"quantization_config": compressed(like)})
    assert isinstance(method, CompressedTensors)
    assert isinstance(alone, CompressedTensors)
    found = [method.group_of(module) for module in ("a.down_proj", "b.down_proj", "b.router")]
    assert found == [method.groups[2], method.groups[1], method.groups[0]]
    assert alone.group_of("b.router") is None


def test_no_quantization():
    assert quantization_from_hf({}) is None


def test_what_modelopt_says_in_a_file_of_its_own(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert quantization_from_hf(read_hf_config(tmp_path)) is None
    said = {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}
    written = {"producer": {"name": "modelopt"}, "quantization": said}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(written))
    assert quantization_from_hf(read_hf_config(tmp_path)) == ModelOpt()


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method='bitsandbytes'.*supported are mxfp4, fp8, compressed-tensors, awq"),
        ({"bits": 4}, "quant_method=None"),
        ({"quant_method": ["fp8"]}, "quant_method"),
        ({**DEEPSEEK, "fmt": "e5m2"}, "fmt='e5m2'"),
        ({**DEEPSEEK, "activation_scheme": "none"}, "activation_scheme='none'"),
        ({**DEEPSEEK, "scale_fmt": "int"}, "scale_fmt"),
        ({**DEEPSEEK, "expert_dtype": "fp4"}, "expert_dtype='fp4'"),
        ({**DEEPSEEK, "weight_format": 3}, "weight_format"),
        ({"quant_method": "mxfp4", "weight_block_size": [1, 32]}, "weight_block_size"),
        ({**AWQ_GEMM, "version": "gemv"}, "version='gemv' is not supported; supported is gemm"),
        ({**AWQ_GEMM, "bits": 8}, "bits=8"),
        ({**AWQ_GEMM, "zero_point": False}, "zero_point=False"),
        ({**GPTQ_V1, "bits": 3}, "bits=3 is not supported; supported are 2, 4, 8"),
        ({**GPTQ_V1, "checkpoint_format": "marlin"}, "checkpoint_format='marlin'"),
        ({**GPTQ_V1, "checkpoint_format": ["gptq"]}, r"checkpoint_format=\['gptq'\]"),
        ({**GPTQ_V1, "is_marlin_format": True}, "not Marlin's"),
        ({**GPTQ_V1, "pack_dtype": "int8"}, "pack_dtype"),
        ({**GPTQ_V1, "dynamic": {"-:lm_head": {}}}, "dynamic"),
        ({**MODELOPT, "quant_algo": "W4A8_AWQ"}, "quant_algo='W4A8_AWQ'"),
        ({**MODELOPT, "quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "INT4"}}}, "a='INT4'"),
        (compressed(linear(FP8, "marlin-24")), "group_0: format='marlin-24'"),
        (compressed(linear(FP8, None)), "format=None"),
        (compressed(linear({**INT4, "num_bits": 3})), "num_bits=3 is not supported; pack-quantized is read with int of 2 bits"),
        (compressed(linear({**FP8, "strategy": "token"}, "float-quantized")), "strategy='token'"),
        (compressed(linear({})), "weights"),
        (compressed(linear(INT4), sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config"),
        (compressed(linear(INT4), transform_config={"config_groups": {"u": {}}}), "transform_config"),
        (compressed(linear(INT4), quantization_status="calibration"), "quantization_status='calibration'"),
    ],
)
def test_what_is_not_read_is_refused_by_name(given, names):
    with pytest.raises(UnsupportedModelError, match=names):
        quantization_from_hf({"quantization_config": given})


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (compressed(), "lacks config_groups"),
        (compressed(linear(INT4, targets=())), "lacks targets"),
        (compressed(linear(INT4, targets=("re:*",))), r"targets: '\*' is no regular expression"),
        (compressed(linear({**BLOCKS, "block_structure": [128]}, "float-quantized")), "block_structure must be two positive"),
        ({**AWQ_GEMM, "group_size": 0}, "group_size must be a positive integer, got 0"),
        ({"quant_method": "gptq", "group_size": 128}, "lacks bits"),
        ({**compressed(), "config_groups": {"group_0": 3}}, "config_groups.group_0 must be an object, got 3"),
    ],
)
def test_impossible_values_are_named(given, complaint):
    with pytest.raises(CheckpointError, match=complaint):
        quantization_from_hf({"quantization_config": given})


@pytest.mark.parametrize("sizes", [[128], [128, 0], [128, True], "128", [128, 128.0], 128])
def test_impossible_block_sizes_are_named(sizes):
    with pytest.raises(CheckpointError, match="weight_block_size must be two positive integers"):
        quantization_from_hf({"quantization_config": {**DEEPSEEK, "weight_block_size": sizes}})


def test_a_description_that_is_no_object():
    with pytest.raises(CheckpointError, match="quantization_config must be an object, got 'fp8'"):
        quantization_from_hf({"quantization_config": "fp8"})
