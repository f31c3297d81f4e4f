"""What to compile, and for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jaxserve.config.check import check_types, require_at_least
from jaxserve.config.fields import (
    CacheConfig,
    CompileConfig,
    EngineConfig,
    KernelConfig,
    KvCacheDType,
    ModelConfig,
    ParallelConfig,
    Quantization,
    SchedulerConfig,
    setting,
)
from jaxserve.config.kernels import AUTO
from jaxserve.config.speculative import SpeculationConfig
from jaxserve.errors import ConfigError
from jaxserve.sampling.variants import Variant
from jaxserve.step.buckets import CHUNK_ROWS, Bucket, BucketGrid

ALL, NONE = "all", "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """A model and the machine that it will run on."""

    model: str = setting("llama-3-8b", "checkpoint directory, or a shape that jaxserve.plan knows", positional=True)
    target: str = setting("h100:1", "GPU and how many: a100, h100, h200 or b200, as in h100:8; 'cpu' for this machine's own")
    tp: int = setting(1, "devices that share every layer")
    ep: int | None = setting(None, "groups of them that share the experts of a layer; by default as the server chooses")
    rows: str = setting("32", "decode steps to compile: numbers of rows, as in 1,32,256; 'all' that the engine has, or 'none'")
    tokens: str = setting("2048", "steps with prompts to compile: numbers of tokens, as in 512,2048; likewise 'all' or 'none'")
    variants: str = setting(
        ALL,
        "what rows may need of the choice of tokens: names of variants, as in greedy,truncated; 'all' that there are",
    )
    layers: int | None = setting(None, "compile the model's first layers only: a quick look")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = setting(
        "auto", "dtype of weights and activations, and of the KV cache unless that has its own; 'auto' takes the checkpoint's"
    )
    kv_cache_dtype: KvCacheDType = setting("auto", "what keys and values are kept in, as for jaxserve.serve")  # noqa: RUF009
    quantization: Quantization = setting("none", "what matrices are rounded to, as for jaxserve.serve")  # noqa: RUF009
    max_num_seqs: int = setting(256, "sequences in one step at most")
    max_num_batched_tokens: int = setting(2048, "tokens in one step at most")
    max_model_len: int | None = setting(None, "longest prompt plus output in tokens; the model's own limit by default")
    page_size: int = setting(16, "tokens a page")
    num_pages: int | None = setting(None, "pages in the KV cache, one of them the null page; from memory by default")
    gpu_memory_fraction: float = setting(0.9, "share of GPU memory that weights, workspace and KV cache may take")
    attention_kernel: str = setting(AUTO, "implementation of attention over pages, as for jaxserve.serve")
    kv_write_kernel: str = setting(AUTO, "implementation of writing keys and values into pages, likewise")
    grouped_matmul_kernel: str = setting(AUTO, "implementation of the matrix products of experts, likewise")
    deterministic: bool = setting(False, "steps of one shape whose rows do not depend on one another, as for jaxserve.serve")
    speculative_config: str | None = setting(None, "JSON object with vLLM's fields, as for jaxserve.serve")
    autotune_results: str | None = setting(
        None, "directory of what XLA measured of kernels on such a GPU, made by jaxserve.serve --autotune-results"
    )

    def __post_init__(self) -> None:
        check_types(self)
        require_at_least("tp", self.tp, 1)
        if self.layers is not None:
            require_at_least("layers", self.layers, 1)
        drafts = self.engine().speculation.parse()
        if drafts is not None and drafts.runs_model:
            raise ConfigError(
                "speculative_config: programs of draft models are not compiled for machines that are not here",
                param="speculative_config",
            )
        if self.rows == self.tokens == NONE:
            raise ConfigError("nothing to compile: rows and tokens are both 'none'", param="rows")
        for name, limit in (("rows", "max_num_seqs"), ("tokens", "max_num_batched_tokens")):
            most = max((*_numbers(name, getattr(self, name)), 0))
            if most > getattr(self, limit):
                raise ConfigError(f"{name} names {most}, more than {limit}, which is {getattr(self, limit)}", param=name)

    def engine(self) -> EngineConfig:
        """The engine that the programs are for. Raises ConfigError for what is no engine."""
        return EngineConfig(
            model=ModelConfig(
                model=self.model, dtype=self.dtype, quantization=self.quantization, max_model_len=self.max_model_len
            ),
            cache=CacheConfig(
                kv_cache_dtype=self.kv_cache_dtype,
                page_size=self.page_size,
                num_pages=self.num_pages,
                gpu_memory_fraction=self.gpu_memory_fraction,
            ),
            scheduler=SchedulerConfig(max_num_seqs=self.max_num_seqs, max_num_batched_tokens=self.max_num_batched_tokens),
            parallel=ParallelConfig(tensor_parallel_size=self.tp, expert_parallel_size=self.ep),
            kernels=KernelConfig(
                attention_kernel=self.attention_kernel,
                kv_write_kernel=self.kv_write_kernel,
                grouped_matmul_kernel=self.grouped_matmul_kernel,
                deterministic=self.deterministic,
            ),
            compile=CompileConfig(autotune_results=self.autotune_results),
            speculation=SpeculationConfig(speculative_config=self.speculative_config),
        )

    def chosen(self, variants: Sequence[Variant]) -> list[Variant]:
        """Those of an engine's variants that are to be compiled. Raises ConfigError for a name that none of them has."""
        names = [variant.name for variant in variants]
        asked = names if self.variants == ALL else self.variants.split(",")
        unknown = [name for name in asked if name not in names]
        if unknown:
            raise ConfigError(f"variants names {', '.join(unknown)}; there are {', '.join(names)}", param="variants")
        return [variant for variant in variants if variant.name in asked]

    def buckets(self, grid: BucketGrid) -> list[Bucket]:
        """What to compile of an engine's grid: decode steps, then those with prompts; then both with drafts, if there are any."""
        plain = [bucket for bucket in grid.buckets if not bucket.drafts]
        if len(plain) == 1 and not self.rows == self.tokens == ALL:
            raise ConfigError(f"deterministic steps have one shape, {plain[0]}: rows and tokens must be 'all'", param="rows")
        decode = [bucket for bucket in plain if bucket.tokens == bucket.rows]
        prompts = [bucket for bucket in plain if bucket.tokens > bucket.rows]
        if self.rows != ALL:
            decode = [Bucket(rows, rows) for rows in _numbers("rows", self.rows)]
        if self.tokens != ALL:
            asked = _numbers("tokens", self.tokens)
            prompts = [Bucket(tokens, min(CHUNK_ROWS, self.max_num_seqs, tokens)) for tokens in asked]
        most = self.engine().speculation.max_drafts
        return [*decode, *prompts, *(grid.widened(bucket, most) for bucket in (*decode, *prompts) if most)]


def _numbers(name: str, text: str) -> tuple[int, ...]:
    if text in (ALL, NONE):
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"{name} must be numbers above 0 with commas, 'all' or 'none', got {text!r}", param=name)
    return tuple(sorted({int(part) for part in parts}))
