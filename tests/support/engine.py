"""One compiled executor under many schedulers: build once, then run with other budgets, pools and flags."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.state_pool import StatePool
from jaxserve.cache.swap import SwapSpace
from jaxserve.clock import RealClock
from jaxserve.config.fields import (
    CacheConfig,
    CompileConfig,
    DType,
    EngineConfig,
    KernelConfig,
    KvCacheDType,
    ModelConfig,
    ParallelConfig,
    Quantization,
    SchedulerConfig,
)
from jaxserve.engine.build import BuiltEngine, build_engine
from jaxserve.engine.core import EngineCore
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.preemption import Preemption
from jaxserve.scheduler.request import Update
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.speculation.device import DeviceGuesses
from jaxserve.speculation.speculation import Speculation
from jaxserve.types import RequestOptions


def silent(what: str, done: int, total: int) -> None:
    pass


def build(
    directory: Path,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    page_size: int = 8,
    tensor_parallel_size: int = 1,
    dtype: DType = "float32",
    quantization: Quantization = "none",
    kv_cache_dtype: KvCacheDType = "auto",
    kernels: KernelConfig | None = None,
    every_shape: bool = False,
) -> BuiltEngine:
    """An engine of two step shapes; `every_shape`: of all that a server has."""
    config = EngineConfig(
        model=ModelConfig(model=str(directory), dtype=dtype, quantization=quantization, max_model_len=max_model_len),
        cache=CacheConfig(page_size=page_size, kv_cache_dtype=kv_cache_dtype),
        scheduler=SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens),
        parallel=ParallelConfig(tensor_parallel_size=tensor_parallel_size),
        compile=CompileConfig(late_compiles="raise", before_ready="all" if every_shape else "fewest"),
        kernels=kernels or KernelConfig(),
    )
    return build_engine(config, strict_length=True, clock=RealClock(), progress=silent)


@dataclass
class Run:
    """What a run gave: tokens and updates per prompt, in order, its scheduler at the end, and preemptions."""

    tokens: list[list[int]]
    updates: list[list[Update]]
    scheduler: Scheduler
    preemptions: list[Preemption]


def run(
    built: BuiltEngine,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams],
    *,
    overlap: bool = True,
    prefix_caching: bool = True,
    num_pages: int | None = None,
    swap: SwapSpace | None = None,
    options: RequestOptions | None = None,
    speculation: Speculation | DeviceGuesses | None = None,
    each_step: Callable[[EngineCore], None] = lambda core: None,
    **scheduler: float,
) -> Run:
    limits = built.core.executor.capabilities()
    settings: dict[str, Any] = {
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
    } | scheduler
    cache = KVCache(
        num_pages or limits.num_pages,
        limits.page_size,
        prefix_caching=prefix_caching,
        windows=limits.windows,
        max_chunk=limits.max_num_batched_tokens,
        states=None if limits.states is None else StatePool(limits.states),
    )
    config, events = SchedulerConfig(**settings), list[Preemption]()
    grammars = built.core.grammars
    masker = None if grammars is None else grammars.masker
    scheduled = Scheduler(
        config,
        cache,
        limits.max_model_len,
        RealClock(),
        swap=swap,
        on_preemption=events.append,
        speculation=speculation,
        masker=masker,
    )
    core = EngineCore(scheduled, built.core.executor, overlap=overlap, grammars=grammars)
    listed = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    updates: dict[str, list[Update]] = {}
    for prompt, wanted in zip(prompts, listed, strict=True):
        requests = built.intake.prepare(
            {"prompt_token_ids": list(prompt)}, wanted, "test", RealClock().now(), options or RequestOptions()
        )
        updates.update((request.id, []) for request in requests)
        core.add(requests)
    count = len(updates)
    while core.has_work:
        for update in core.step():
            updates.setdefault(update.id, []).append(update)
        core.scheduler.check()
        each_step(core)
    assert cache.num_free == cache.num_usable
    listed_updates = list(updates.values())[:count]  # `each_step` may have added requests of its own
    tokens = [[update.token for update in mine if update.token is not None] for mine in listed_updates]
    return Run(tokens, listed_updates, core.scheduler, events)
