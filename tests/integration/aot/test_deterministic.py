"""--deterministic for a Hopper, compiled without one: one program, whose kernels do not depend on the other rows of a step."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from jaxserve.aot.hlo import Module
from jaxserve.aot.settings import TargetConfig
from jaxserve.aot.shapes import decoder
from jaxserve.aot.target import Target
from jaxserve.errors import ConfigError
from jaxserve.executor.compile_cache import nothing_kept
from jaxserve.executor.invariance import GPU_OPTIONS
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.options import ExecutorOptions
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config
from jaxserve.step.buckets import Bucket
from sharding import make_mesh
from tests.golden.reading import DATA

pytestmark = pytest.mark.skipif(
    find_spec("jax_cuda13_plugin") is None, reason="NOT COMPILED FOR GPUS: jax-cuda13-plugin is missing (Python 3.12 and later)"
)
PRODUCTS = 4
OPTIONS = ExecutorOptions(
    max_num_seqs=32,
    max_num_batched_tokens=128,
    max_model_len=4096,
    num_pages=4096,
    page_size=16,
    dtype="bfloat16",
    kv_dtype="bfloat16",
    deterministic=True,
)


def lowered(target: str = "h100:1", **options: Any) -> Lowering:
    devices = Target.parse(target).devices()
    return Lowering(decoder("llama-3-8b", 1), make_mesh(len(devices), devices), replace(OPTIONS, **options))


def test_a_hopper_has_one_program_whose_attention_is_one_kernel() -> None:
    lowering = lowered()
    (bucket,) = lowering.grid.buckets
    assert bucket == Bucket(128, 32)
    assert lowering.grid.choose(1, 1) == lowering.grid.choose(128, 32, 97) == bucket
    assert lowering.grid.first() == {bucket}
    spec = lowering.forward(bucket)
    assert dict(spec.options).items() >= dict(GPU_OPTIONS).items()
    with nothing_kept():
        module = Module.parse(spec.compile().as_text())
    calls = [line for line in module.computations[module.entry] if line.opcode == "custom-call"]
    products = [call for call in calls if call.target == "__cublas$lt$matmul"]
    assert len(products) == PRODUCTS + 1, "and the head"
    kernels = [call for call in calls if call not in products]
    assert [call.target for call in kernels] == ["mosaic_gpu_v2"] * 2
    written, attended = (call.op_name for call in kernels)
    assert "rotate_and_write" in written
    assert "paged_prefill" in attended, "it alone: nothing is merged"


@pytest.mark.parametrize(
    ("target", "options", "reason"),
    [
        ("h100:2", {}, "tensor_parallel_size is 2"),
        ("a100:1", {}, "compute capability 9.0"),
        ("h100:1", {"max_num_batched_tokens": 32}, "max_num_batched_tokens, 32, which must be more than max_num_seqs, 32"),
        ("h100:1", {"max_drafts": 2}, "drafts"),
        ("h100:1", {"autotune_results": Path("results")}, "autotune_results"),
    ],
)
def test_what_it_cannot_promise_is_refused(target: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"deterministic cannot be promised: .*{reason}") as caught:
        lowered(target, **options)
    assert caught.value.param == "deterministic"


def test_the_only_shape_is_compiled_by_name() -> None:
    config = TargetConfig(deterministic=True, rows="all", tokens="all")
    assert config.engine().kernels.deterministic
    grid = lowered().grid
    assert config.buckets(grid) == list(grid.buckets)
    with pytest.raises(ConfigError, match="rows and tokens must be 'all'"):
        TargetConfig(deterministic=True).buckets(grid)


def test_recurrent_layers_are_refused() -> None:
    devices = Target.parse("h100:1").devices()
    recurrent = decoder_config(read_hf_config(DATA / "lfm2-conv"))
    with pytest.raises(ConfigError, match="layers with recurrent states compute long rows another way"):
        Lowering(recurrent, make_mesh(1, devices), OPTIONS)
