"""The one place where "auto" becomes a value, from facts about the model and the devices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from jaxserve.config.fields import EngineConfig, RecordConfig, SchedulerConfig
from jaxserve.config.home import cache_directory
from jaxserve.config.kernels import AUTO
from jaxserve.config.states import StatePlaces
from jaxserve.config.windows import longest_sequence
from jaxserve.errors import ConfigError

GIB = 2**30
CPU_CACHE_BYTES = 4 * GIB  # enough for the small models a CPU serves; --kv-cache-memory-gib asks for more
WORKSPACE_BYTES = 2 * GIB  # activations, logits and XLA's temporaries on a GPU
SPARE_BYTES = WORKSPACE_BYTES // 2  # of it, by which saved programs' cache may be larger: GPUs of a kind differ by some MB


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the checkpoint says.

    Attributes:
        name: name of its directory.
        dtype: dtype of its weights.
        max_position_embeddings: longest context it was made for, tokens.
        windows: of each group of its layers.
        bidirectional: whether its tokens see those behind them: nothing is cached, and a prompt is computed in one step.
        recurrent: whether layers keep states of fixed size.
        chunk: positions of the chunks that layers attend within; None if none does.
    """

    name: str
    dtype: str
    max_position_embeddings: int
    windows: tuple[int | None, ...] = (None,)
    bidirectional: bool = False
    recurrent: bool = False
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What the devices say.

    Attributes:
        platform: "cpu" or "gpu".
        count: devices that share the model.
        memory: bytes that one device (or the host, for CPUs) can give; of a GPU, `gpu_memory_fraction` is taken off already.
        host_memory: bytes that the host can give, infinite if nobody knows.
        slow_bfloat16_scatter: whether writing a bfloat16 cache would convert all of it (XLA's CPU backend before jax 0.11).
    """

    platform: str
    count: int
    memory: int
    slow_bfloat16_scatter: bool
    host_memory: float = math.inf


@dataclass(frozen=True, slots=True)
class DeviceBytes:
    """What one device holds.

    Attributes:
        weights: parameters, with padding and what several devices repeat.
        state: what else lives from step to step, without the KV cache.
        page: one page of the KV cache, which is of one group of layers.
        adapters: slots of adapters.
    """

    weights: int
    state: int
    page: int
    adapters: int = 0

    def __add__(self, other: DeviceBytes) -> DeviceBytes:
        return DeviceBytes(
            self.weights + other.weights,
            self.state + other.state,
            self.page + other.page,
            self.adapters + other.adapters,
        )

    @property
    def fixed(self) -> int:
        """All but the KV cache."""
        return self.weights + self.state + self.adapters


CountBytes = Callable[[str, str], DeviceBytes]
"""(dtype, kv_dtype) -> what one device holds then."""


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """Values for everything that could be "auto".

    Attributes:
        served_model_names: the names requests may use, of which answers carry the first.
        dtype, kv_dtype: of weights and activations, and of the KV cache.
        max_model_len: longest prompt plus output, tokens.
        num_pages: pages of the KV cache, the null page included.
        swap_slots: pages that the swap space holds.
        device_bytes: memory of one device; `cache_bytes` is its KV cache.
        compile_first: whether serving begins when a few steps are compiled.
        scheduler: with the defaults of the platform.
        prefix_caching: whether prompts share pages; never where nothing is cached.
        states: places of recurrent states; None of a model without.
    """

    served_model_names: tuple[str, ...]
    dtype: str
    kv_dtype: str
    max_model_len: int
    num_pages: int
    swap_slots: int
    device_bytes: DeviceBytes
    compile_first: bool
    scheduler: SchedulerConfig
    prefix_caching: bool
    states: StatePlaces | None = None

    @property
    def cache_bytes(self) -> int:
        """The KV cache on one device."""
        return self.num_pages * self.device_bytes.page


def resolve(
    config: EngineConfig, model: ModelFacts, devices: DeviceFacts, count_bytes: CountBytes, saved_pages: int | None = None
) -> ResolvedConfig:
    """Choose every "auto".

    Args:
        config: what was asked for.
        model: what the checkpoint says.
        devices: what the devices say.
        count_bytes: what each device holds, once the dtypes are known.
        saved_pages: pages of the cache that saved programs are for; taken where none are asked for and memory has them.

    Raises ConfigError: what cannot be, with the numbers that conflict.
    """
    if model.bidirectional:
        _check_uncached(config)
    if model.recurrent:
        _check_recurrent(config)
    if model.chunk is not None and model.chunk % config.cache.page_size:
        raise ConfigError(
            f"page_size is {config.cache.page_size}, and layers attend within chunks of {model.chunk} tokens: these must be "
            "whole pages",
            param="page_size",
        )
    dtype, kv_dtype = resolve_dtypes(config, model, devices)
    device_bytes = count_bytes(dtype, kv_dtype)
    max_model_len = _max_model_len(config, model)
    num_pages = _num_pages(config, devices, max_model_len * len(model.windows), device_bytes, saved_pages)
    chunk = config.scheduler.max_num_batched_tokens
    if model.bidirectional and max_model_len > chunk:
        if config.model.max_model_len is not None:
            raise ConfigError(
                f"max_model_len is {max_model_len} tokens, and this model computes a prompt in one step, which has {chunk} at "
                "most (max_num_batched_tokens)",
                param="max_model_len",
            )
        max_model_len = chunk
    fitting = longest_sequence(model.windows, num_pages - 1, config.cache.page_size, chunk)
    if fitting is not None and fitting < 2:
        raise ConfigError(f"num_pages is {num_pages}: the KV cache must hold a prompt's token and one more", param="num_pages")
    if fitting is not None and fitting < max_model_len:
        if config.model.max_model_len is not None:
            raise ConfigError(
                f"max_model_len is {max_model_len} tokens, but the KV cache holds {fitting} "
                f"({num_pages - 1} pages of {config.cache.page_size}); lower max_model_len or give the cache more memory",
                param="max_model_len",
            )
        max_model_len = fitting
    return ResolvedConfig(
        served_model_names=config.model.served_model_name or (model.name,),
        dtype=dtype,
        kv_dtype=kv_dtype,
        max_model_len=max_model_len,
        num_pages=num_pages,
        swap_slots=_swap_slots(config, devices, device_bytes.page),
        device_bytes=device_bytes,
        compile_first=_compile_first(config, devices),
        scheduler=_scheduler(config.scheduler, model, devices),
        prefix_caching=config.cache.prefix_caching and not model.bidirectional,
        states=state_places(config) if model.recurrent else None,
    )


def _check_uncached(config: EngineConfig) -> None:
    """Raise ConfigError for what a model without a KV cache has no use for."""
    asked = {
        "speculative_config": config.speculation.speculative_config is not None,
        "deterministic": config.kernels.deterministic,
        "attention_kernel": config.kernels.attention_kernel != AUTO,
        "kv_write_kernel": config.kernels.kv_write_kernel != AUTO,
        "kv_cache_dtype": config.cache.kv_cache_dtype != "auto",
        "kv_cache_memory_gib": config.cache.kv_cache_memory_gib is not None,
        "kv_events_config": config.cache.kv_events_config is not None,
        "warm_prompts": config.cache.warm_prompts is not None,
    }
    for name, needs_cache in asked.items():
        if needs_cache:
            raise ConfigError(f"{name} needs a KV cache, and this model has none: its tokens see those behind them", param=name)


def _check_recurrent(config: EngineConfig) -> None:
    """Raise ConfigError for what a model with recurrent states cannot have."""
    if config.cache.swap_space > 0:
        raise ConfigError(
            "swap_space moves pages of every layer to the host, and this model has layers with recurrent states",
            param="swap_space",
        )


def state_places(config: EngineConfig) -> StatePlaces:
    """Room for recurrent states, as asked for. The interval is rounded up to whole pages."""
    slots, asked, size = config.scheduler.max_num_seqs, config.cache.state_snapshots, config.cache.page_size
    snapshots = slots + -(-slots // 4) if asked is None else asked  # one a running prompt, and some of what prompts share
    interval = -(-config.cache.state_snapshot_interval // size) * size
    return StatePlaces(slots, 1 + config.speculation.max_drafts, snapshots if config.cache.prefix_caching else 0, interval)


def _scheduler(asked: SchedulerConfig, model: ModelFacts, devices: DeviceFacts) -> SchedulerConfig:
    asked = replace(asked, whole_prompts=model.bidirectional)
    return asked.on_cpu() if devices.platform == "cpu" else asked


def resolve_dtypes(config: EngineConfig, model: ModelFacts, devices: DeviceFacts) -> tuple[str, str]:
    """The dtype of weights and activations, and that of the KV cache."""
    dtype = model.dtype if config.model.dtype == "auto" else config.model.dtype
    asked = config.cache.kv_cache_dtype
    if asked != "auto":
        return dtype, "float8_e4m3fn" if asked in ("fp8", "fp8_e4m3") else asked
    return dtype, "float32" if devices.slow_bfloat16_scatter and dtype == "bfloat16" else dtype


def _compile_first(config: EngineConfig, devices: DeviceFacts) -> bool:
    """A GPU's programs take up to a minute each; a CPU's models are small, and their results should not depend on timing."""
    asked = config.compile.before_ready
    return devices.platform != "cpu" if asked == "auto" else asked == "first"


def dump_directory(config: RecordConfig) -> Path | None:
    """Where crash dumps go; None if no directory for them is named or can be made."""
    if config.dump_dir:
        return Path(config.dump_dir)
    cache = cache_directory()
    return None if cache is None else cache / "dumps"


def _max_model_len(config: EngineConfig, model: ModelFacts) -> int:
    asked = config.model.max_model_len
    if asked is None:
        return model.max_position_embeddings
    if asked > model.max_position_embeddings:
        raise ConfigError(
            f"max_model_len is {asked} tokens, but the model was made for {model.max_position_embeddings}",
            param="max_model_len",
        )
    return asked


def _swap_slots(config: EngineConfig, devices: DeviceFacts, page: int) -> int:
    asked = config.cache.swap_space
    if asked and not page:
        raise ConfigError(f"swap_space is {asked:g} GiB, and this model caches nothing that could be swapped", param="swap_space")
    slots = int(asked * GIB // page) if page else 0
    if asked and not slots:
        raise ConfigError(f"swap_space is {asked:g} GiB, less than one page, which takes {page:,} bytes", param="swap_space")
    if slots * page * devices.count > devices.host_memory:
        raise ConfigError(
            f"swap_space is {asked:g} GiB for each of {devices.count} devices, and the host has "
            f"{devices.host_memory / GIB:.2f} GiB left",
            param="swap_space",
        )
    return slots


def _num_pages(config: EngineConfig, devices: DeviceFacts, longest: int, held: DeviceBytes, saved_pages: int | None) -> int:
    """Pages as asked for; else as saved programs have; else as many as could ever be used. The last two if memory allows.

    `longest` is the tokens of the longest sequence, those of each group of layers counted.
    """
    if config.cache.num_pages is not None:
        return config.cache.num_pages
    useful = config.scheduler.max_num_seqs * -(-longest // config.cache.page_size) + 1
    if not held.page:  # nothing is cached: pages are counted, and take no memory
        return useful
    page_bytes, held_bytes, spare = held.page * devices.count, held.fixed * devices.count, 0
    if config.cache.kv_cache_memory_gib is not None:
        budget = int(config.cache.kv_cache_memory_gib * GIB)
    elif devices.platform == "cpu":
        swapped = int(config.cache.swap_space * GIB) * devices.count
        budget = min(CPU_CACHE_BYTES, max(devices.memory - held_bytes - swapped, 0) // 2)
    else:
        budget = max((devices.memory - WORKSPACE_BYTES) * devices.count - held_bytes, 0)
        useful = budget // page_bytes  # a GPU's memory has no better use than cached prefixes
        spare = SPARE_BYTES * devices.count
    if saved_pages is not None and 2 <= saved_pages <= (budget + spare) // page_bytes:
        return saved_pages
    pages = min(useful, budget // page_bytes)
    if pages < 2:
        raise ConfigError(
            f"no memory for a KV cache: {budget / 2**30:.2f} GiB left after {held.weights * devices.count / 2**30:.2f} GiB of "
            f"weights, one page takes {page_bytes / 2**20:.2f} MiB",
            param="kv_cache_memory_gib",
        )
    return pages
