"""Weights and cache as planned are those that the engine holds, to the byte, for every family."""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import pytest

from jaxserve.config.fields import EngineConfig
from jaxserve.config.lora import LoraShape
from jaxserve.config.resolve import DeviceBytes
from jaxserve.config.windows import group_layers
from jaxserve.errors import ConfigError
from jaxserve.executor.draft_step import DraftModel
from jaxserve.executor.memory import count_bytes, device_bytes, draft_bytes
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.draft_heads import head_config
from jaxserve.models.registry import FAMILIES, MODEL_TYPES, decoder_config
from jaxserve.models.shards import require_shards
from jaxserve.planner import catalogue
from jaxserve.planner.adapters import adapter_bytes_device
from jaxserve.planner.hf import shape_from_hf, shape_of
from jaxserve.planner.memory import PAGE_SIZE, KvFormat, Layout, WeightFormat
from jaxserve.weights.load import load_params
from jaxserve.weights.packed import Packer
from jaxserve.weights.stored_schemes import stored_schemes
from pallas_kernels import native
from sharding import make_mesh
from tests.golden.reading import DATA, NAMES
from tests.support.tiers import tiered

# Published models, with everything a multiple of what it is, but smaller.
SMALLER: dict[str, Any] = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 40}
PUBLISHED: dict[str, dict[str, Any]] = {
    "mixtral-8x7b": {},
    "qwen3-moe": {"moe_intermediate_size": 24},
    "deepseek-v3": {"moe_intermediate_size": 24, "q_lora_rank": 48, "num_attention_heads": 8, "num_key_value_heads": 8},
    "gpt-oss-120b": {},
}

# The first checkpoint of each family: what a matrix is rounded to, or an adapter has a part for, follows from the family.
OF_EACH_FAMILY = {read_hf_config(DATA / name)["architectures"][0]: name for name in reversed(NAMES)}.values()


def layout(hf: dict[str, Any], tp: int = 1, weights: WeightFormat = "bf16", kv_dtype: KvFormat = "bf16") -> Layout:
    shape = shape_from_hf(hf, "small")
    return Layout(shape=shape, hardware=catalogue.hardware("h100"), tp=tp, weights=weights, kv_dtype=kv_dtype)


def check(hf: dict[str, Any]) -> None:
    decoder, plan = decoder_config(hf), layout(hf)
    held = count_bytes(decoder, make_mesh(1), EngineConfig(), "bfloat16", "bfloat16")
    assert plan.shape.num_parameters == decoder.num_parameters
    assert plan.weight_bytes == plan.weight_bytes_device == held.weights
    token = PAGE_SIZE * plan.kv_token_bytes
    assert token == PAGE_SIZE * plan.kv_token_bytes_device
    assert token * group_layers(decoder.cache_windows).size == held.page * len(decoder.cache_windows), "a page is of a group"


def divisors(hf: dict[str, Any], counts: Sequence[int]) -> list[int]:
    """Those of the device counts that the model can be divided over."""

    def divides(tp: int) -> bool:
        try:
            require_shards(decoder_config(hf), tp)
        except ConfigError:
            return False
        return True

    return [tp for tp in counts if divides(tp)]


def held_bytes(hf: dict[str, Any], tp: int, **settings: Any) -> DeviceBytes:
    config = EngineConfig.from_settings(settings)
    return count_bytes(decoder_config(hf), make_mesh(tp), config, "bfloat16", "bfloat16")


@pytest.mark.parametrize("name", NAMES)
def test_every_golden_checkpoint(name: str, subtests: pytest.Subtests) -> None:
    hf = read_hf_config(DATA / name)
    check(hf)
    for tp in divisors(hf, (2, 4, 8)):
        with subtests.test(tp=tp):
            assert layout(hf, tp).weight_bytes_device == held_bytes(hf, tp).weights


@pytest.mark.parametrize("name", tiered(NAMES, OF_EACH_FAMILY))
def test_matrices_that_are_rounded(name: str, subtests: pytest.Subtests) -> None:
    """In 8 bits: on the fewest devices and the most. int4 and w8a8 have native kernels only, for one device and dense models.

    Routed experts and absorbed projections are planned in fp8 as published checkpoints have them: the engine holds 16 bits.
    """
    hf = read_hf_config(DATA / name)
    for tp in sorted({*divisors(hf, (2, 4, 8))[:1], *divisors(hf, (2, 4, 8))[-1:]}):
        with subtests.test(tp=tp, weights="int8"):
            assert layout(hf, tp, "int8").weight_bytes_device == held_bytes(hf, tp, quantization="int8").weights
        with subtests.test(tp=tp, weights="fp8"):
            plan = layout(hf, tp, "fp8")
            wide = [part for part in plan.shape.parts if part.quantized and not part.scales]
            assert {part.name for part in wide} <= {"routed experts", "absorbed projections"}
            more = sum(part.on_device(tp) for part in wide)
            assert plan.weight_bytes_device + more == held_bytes(hf, tp, quantization="fp8").weights
            assert plan.part_bytes(plan.shape.parts[-1]) == 2 * plan.shape.parts[-1].count
    if decoder_config(hf).experts is not None:
        return
    rounded: tuple[WeightFormat, ...] = ("int4", "w8a8", "int8")
    for weights in rounded:
        with subtests.test(weights=weights):
            if native.missing() is not None:
                pytest.skip(f"NOT CHECKED: native kernels: {native.missing()}")
            plan = layout(hf, 1, weights)
            assert plan.weight_bytes == plan.weight_bytes_device == held_bytes(hf, 1, quantization=weights).weights


@pytest.mark.parametrize("name", tiered(NAMES, OF_EACH_FAMILY))
def test_slots_of_adapters(name: str, subtests: pytest.Subtests) -> None:
    hf = read_hf_config(DATA / name)
    for tp, experts in itertools.product(divisors(hf, (1, 4)), (False, True)):
        slots = {"enable_lora": True, "max_loras": 3, "max_lora_rank": 9, "lora_experts": experts}
        with subtests.test(tp=tp, experts=experts):
            held = held_bytes(hf, tp, model=str(DATA / name), **slots).adapters
            assert adapter_bytes_device(shape_from_hf(hf, "small"), tp, LoraShape(3, 16, experts)) == held


@pytest.mark.parametrize("name", NAMES)
def test_recurrent_states(name: str, subtests: pytest.Subtests) -> None:
    """Every place of a larger table is as large as is planned."""
    hf = read_hf_config(DATA / name)
    if decoder_config(hf).recurrent is None:
        return
    for tp in divisors(hf, (1, 2)):
        with subtests.test(tp=tp):
            few, many = (held_bytes(hf, tp, state_snapshots=count).state for count in (10, 17))
            assert many - few == 7 * layout(hf, tp).state_bytes_device


@pytest.mark.parametrize("name", ["qwen3-moe-some", "deepseek-v3-groups"])
def test_groups_of_devices_that_share_experts_change_no_bytes(name: str) -> None:
    hf = read_hf_config(DATA / name)
    held = count_bytes(decoder_config(hf), make_mesh(1, expert=2), EngineConfig(), "bfloat16", "bfloat16")
    assert layout(hf, 2).weight_bytes_device == held.weights


KV_DTYPES: list[tuple[KvFormat, str]] = [("bf16", "bfloat16"), ("fp8", "float8_e4m3fn"), ("int8", "int8")]


@pytest.mark.parametrize(("kv_format", "kv_dtype"), KV_DTYPES)
@pytest.mark.parametrize(("name", "tp"), [("llama-tied", 1), ("llama-tied", 2), ("deepseek-v2-lite", 2), ("gemma3-local", 2)])
def test_pages_and_scales_of_a_cache(name: str, tp: int, kv_format: KvFormat, kv_dtype: str) -> None:
    hf = read_hf_config(DATA / name)
    decoder, plan = decoder_config(hf), layout(hf, tp, kv_dtype=kv_format)
    page = count_bytes(decoder, make_mesh(tp), EngineConfig(), "bfloat16", kv_dtype).page
    assert PAGE_SIZE * plan.kv_layer_bytes(tp) * group_layers(plan.shape.cache_windows).size == page
    assert plan.kv_token_bytes_device == plan.kv_layer_bytes(tp) * len(decoder.cache_windows)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_scaled_down(name: str) -> None:
    known = catalogue.known_config(name)
    assert known is not None
    check({**known, **SMALLER, **PUBLISHED[name], "architectures": [MODEL_TYPES[known["model_type"]]]})


@pytest.mark.parametrize("name", ["mixtral-window", "qwen3-moe-some", "deepseek-v3-groups", "deepseek-v3-fp8", "gpt-oss-mxfp4"])
def test_what_is_loaded(name: str) -> None:
    """Also of quantized checkpoints, which are held dequantized; layers for predicting more tokens at once are not loaded."""
    hf = read_hf_config(DATA / name)
    params = load_params(DATA / name, decoder_config(hf), make_mesh(1), "bfloat16")
    assert sum(array.nbytes for array in jax.tree.leaves(params)) == layout(hf).weight_bytes
    decoder, mesh = decoder_config(hf), make_mesh(2)
    params = load_params(DATA / name, decoder, mesh, "bfloat16", packer=Packer(decoder, mesh, "int8"))
    assert device_bytes(params) == layout(hf, 2, "int8").weight_bytes_device


def test_what_is_loaded_of_a_checkpoint_in_fp8() -> None:
    """As planned, with the checkpoint's own numbers on two devices."""
    hf = read_hf_config(DATA / "mistral-fp8-channels")
    decoder, mesh = decoder_config(hf), make_mesh(2)
    packer = Packer(decoder, mesh, "fp8", stored_schemes(DATA / "mistral-fp8-channels", decoder, "auto"))
    params = load_params(DATA / "mistral-fp8-channels", decoder, mesh, "bfloat16", packer=packer)
    assert device_bytes(params) == layout(hf, 2, "fp8").weight_bytes_device


def test_every_family_is_asked() -> None:
    assert {read_hf_config(DATA / name)["architectures"][0] for name in NAMES} == set(FAMILIES)


@pytest.mark.parametrize("tp", [1, 2])
def test_a_draft_head_beside_its_target(tp: int) -> None:
    target = decoder_config(read_hf_config(DATA / "llama-tied"))
    head = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": target.vocab_size,
        "draft_vocab_size": 40,
        "hidden_size": target.hidden_size,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0]},
    }
    config = head_config(head, target, ())
    held = draft_bytes(DraftModel(config, 3, 0), make_mesh(tp), PAGE_SIZE, "bfloat16", "bfloat16")
    plan = Layout(shape=shape_of(config, "head"), hardware=catalogue.hardware("h100"), tp=tp, weights="bf16", kv_dtype="bf16")
    assert plan.weight_bytes_device == held.weights
    assert PAGE_SIZE * plan.kv_token_bytes_device == held.page
