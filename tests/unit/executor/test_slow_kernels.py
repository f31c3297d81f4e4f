"""The line that says at the start what a GPU computes without a kernel."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import pytest

from jaxserve.config.kernels import Kernels, LayerRange
from jaxserve.executor import slow_kernels as module
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.options import ExecutorOptions
from jaxserve.executor.slow_kernels import slow_kernels
from jaxserve.models.config import DecoderConfig
from jaxserve.models.registry import decoder_config
from pallas_kernels import grouped_matmul, hopper, ragged_paged_attention
from pallas_kernels.ragged_paged_attention import triton_support
from pallas_kernels.registry import Target
from sharding import make_mesh
from tests.support.families import hf_config

pytestmark = pytest.mark.skipif(
    jax.__version_info__ < hopper.OLDEST_JAX, reason="NOT CHECKED: Mosaic GPU kernels need jax 0.11.2"
)

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
}
MIXTRAL = LLAMA | {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2}
H100, A100, B200 = Target("gpu", (9, 0)), Target("gpu", (8, 0)), Target("gpu", (10, 0))


def options(dtype: str = "bfloat16", kv_dtype: str | None = None, **others: Any) -> ExecutorOptions:
    return ExecutorOptions(
        max_num_seqs=4,
        max_num_batched_tokens=32,
        max_model_len=64,
        num_pages=9,
        page_size=16,
        dtype=dtype,
        kv_dtype=kv_dtype or dtype,
        **others,
    )


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Any:
    """(config.json, target, options) -> the line, with jax-triton installed."""
    monkeypatch.setattr(triton_support, "find_spec", lambda name: object())
    monkeypatch.setattr(triton_support, "version", lambda name: "3.7.0")

    def say(hf: dict[str, Any], target: Target, given: ExecutorOptions) -> str | None:
        monkeypatch.setattr(module, "Target", type("Fixed", (), {"of": staticmethod(lambda device: target)}))
        return slow_kernels(decoder_config(hf), make_mesh(1), given)

    return say


@pytest.mark.parametrize("hf", [LLAMA, MIXTRAL])
def test_nothing_is_said_where_kernels_are(said: Any, hf: dict[str, Any]) -> None:
    assert said(hf, H100, options()) is None
    assert said(hf, Target("cpu"), options("float32")) is None


@pytest.mark.parametrize("target", [H100, A100, B200])
def test_caches_in_8_bits(said: Any, target: Target) -> None:
    assert said(LLAMA, target, options(kv_dtype="float8_e4m3fn")) is None
    assert said(LLAMA, target, options(kv_dtype="int8")) is None


def test_float32_on_hopper(said: Any) -> None:
    line = said(MIXTRAL, H100, options("float32"))
    assert line == (
        "slow on gpu of compute capability 9.0, for want of a kernel: "
        "attention (not in mosaic_gpu: queries must be bfloat16 or float16, not float32; "
        "not in triton: queries must be bfloat16 or float16, not float32), "
        "products of experts (not in mosaic_gpu: rows and weights must be bfloat16 or float16, not float32)"
    )


@pytest.mark.parametrize("target", [A100, B200])
def test_other_gpus_have_a_kernel_for_attention(said: Any, target: Target) -> None:
    assert said(LLAMA, target, options()) is None
    line = said(MIXTRAL, target, options())
    assert line.startswith(f"slow on {target}, for want of a kernel: products of experts (not in mosaic_gpu: it needs a GPU of")


def test_but_not_for_latents(said: Any) -> None:
    line = said(hf_config("deepseek_v3"), B200, options())
    assert "not in triton: it reads values, and this cache has none beside its keys" in line


@pytest.mark.parametrize("target", [H100, B200])
def test_nor_for_chosen_tokens(said: Any, target: Target) -> None:
    config, sparse = hf_config("deepseek_v32"), "attention to chosen tokens (no GPU has a kernel for it)"
    assert said(config, target, options()).startswith(f"slow on {target}, for want of a kernel: {sparse}")
    named = Kernels(attention=(LayerRange("xla", 0, None),))
    assert sparse not in (said(config, target, options(kernels=named)) or "")


def test_a_b200_without_jax_triton(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_support, "find_spec", lambda name: None)
    assert "attention (not in mosaic_gpu: it needs a GPU of compute capability 9.0" in said(LLAMA, B200, options())


def test_widths_that_the_grouped_matmul_does_not_take(said: Any) -> None:
    line = said(MIXTRAL | {"intermediate_size": 96}, H100, options())
    assert line.startswith(
        "slow on gpu of compute capability 9.0, for want of a kernel: "
        "products of experts (not in mosaic_gpu: the width of rows must be a multiple of 64, not 96)"
    )


def test_what_was_named_is_nobodys_surprise(said: Any) -> None:
    everywhere = (LayerRange("xla", 0, None),)
    assert said(MIXTRAL, B200, options(kernels=Kernels(attention=everywhere, grouped_matmul=everywhere))) is None
    assert said(MIXTRAL, B200, options(kernels=Kernels(grouped_matmul=(LayerRange("xla", 0, 0),)))) is not None


CONFIGS = {
    "grouped queries": LLAMA,
    "experts": MIXTRAL,
    "latents": hf_config("deepseek_v3"),
    "windows and sinks": MIXTRAL | {"architectures": ["GptOssForCausalLM"], "sliding_window": 16},
}


@pytest.mark.parametrize(
    ("name", "size", "groups"),
    [("grouped queries", 2, 1), ("experts", 2, 2), ("experts", 2, 1), ("latents", 1, 1), ("windows and sinks", 1, 1)],
)
def test_it_asks_what_the_programs_ask(monkeypatch: pytest.MonkeyPatch, name: str, size: int, groups: int) -> None:
    """The problems of a traced step with prompts, but for the number that scales the scores."""
    config: DecoderConfig = decoder_config(CONFIGS[name])
    mesh, given = make_mesh(size // groups, expert=groups), options("float32")
    traced: dict[str, set[Any]] = {"ragged_paged_attention": set(), "grouped_matmul": set()}

    def choose(real: Any, operation: str, table: Any, named: Any, target: Any, problem: Any) -> Any:
        traced[operation].add(problem)
        return real(operation, table, named, target, problem)

    for op in (ragged_paged_attention.api, grouped_matmul.api):
        monkeypatch.setattr(op, "choose", partial(choose, op.choose))
    lowering = Lowering(config, mesh, given)
    bucket = next(bucket for bucket in lowering.grid.buckets if (bucket.tokens, bucket.rows) == (32, 4))
    spec = lowering.forward(bucket)
    jax.eval_shape(spec.function, *spec.arguments)
    shapes = [("prompts", 32, 4)]

    def unscaled(problem: Any) -> Any:
        if not hasattr(problem, "options"):
            return problem
        fields = problem.options
        return (
            problem.tokens,
            problem.rows,
            problem.pages_per_row,
            problem.heads,
            problem.kv_heads,
            problem.head_dim,
            problem.page_size,
            problem.dtype,
            problem.kv_dtype,
            problem.sinks,
            fields.window,
            fields.soft_cap,
            fields.value_dim,
        )

    expected = {problem for _, problem in module._attention(config, mesh, given, (), shapes)}
    assert {unscaled(problem) for problem in traced["ragged_paged_attention"]} == {unscaled(problem) for problem in expected}
    assert traced["grouped_matmul"] == {problem for _, problem in module._experts(config, mesh, given, (), shapes)}
