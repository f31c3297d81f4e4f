"""What --deterministic refuses, by name, and what it sets."""

from dataclasses import replace
from typing import Any

import pytest

from jaxserve.config.kernels import Kernels, LayerRange
from jaxserve.errors import ConfigError
from jaxserve.executor.invariance import CPU_OPTIONS
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.options import ExecutorOptions
from jaxserve.models.registry import decoder_config
from jaxserve.step.buckets import Bucket
from pallas_kernels import native
from sharding import make_mesh
from tests.support.families import hf_config

OPTIONS = ExecutorOptions(
    max_num_seqs=2,
    max_num_batched_tokens=8,
    max_model_len=32,
    num_pages=20,
    page_size=4,
    dtype="float32",
    kv_dtype="float32",
    deterministic=True,
)


@pytest.fixture(autouse=True)
def _with_native_kernels():
    if (missing := native.missing()) is not None:
        pytest.skip(f"NOT CHECKED: native kernels: {missing}")


def lowered(family="llama", devices=1, **options: Any) -> Lowering:
    return Lowering(decoder_config(hf_config(family)), make_mesh(devices), replace(OPTIONS, **options))


@pytest.mark.parametrize(
    ("family", "devices", "options", "reason"),
    [
        ("llama", 2, {}, "tensor_parallel_size is 2"),
        ("llama", 1, {"dtype": "float16", "kv_dtype": "float16"}, "not float16"),
        ("llama", 1, {"kv_dtype": "bfloat16"}, "not of bfloat16"),
        ("deepseek_v2", 1, {}, "latents"),
        ("llama", 1, {"kernels": Kernels(attention=(LayerRange("xla", 0, None),))}, "attention_kernel is named"),
    ],
)
def test_what_it_cannot_promise_is_refused(family, devices, options, reason):
    with pytest.raises(ConfigError, match=f"deterministic cannot be promised: .*{reason}") as caught:
        lowered(family, devices, **options)
    assert caught.value.param == "deterministic"
    assert lowered(family, devices, deterministic=False, **options)


def test_every_program_that_makes_numbers_has_its_options():
    made, usual = lowered(), lowered(deterministic=False)
    specs = [made.forward(Bucket(2, 2)), made.choose(2, made.variants[-1]), *made.others()]
    assert all(dict(spec.options).items() >= dict(CPU_OPTIONS).items() for spec in specs)
    assert not usual.forward(Bucket(2, 2)).options


def test_experts_with_biases_are_refused():
    model = replace(decoder_config(hf_config("qwen2_moe")), mlp_bias=True)
    with pytest.raises(ConfigError, match="biases of experts"):
        Lowering(model, make_mesh(1), OPTIONS)
