"""The one place where "auto" becomes a value, from facts about the model and the devices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jaxserve.config.fields import EngineConfig, RecordConfig
from jaxserve.errors import ConfigError

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
CPU_CACHE_BYTES = 4 * 2**30  # enough for the small models a CPU serves; --kv-cache-memory-gib asks for more
WORKSPACE_BYTES = 2 * 2**30  # activations, logits and XLA's temporaries on a GPU


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the checkpoint says.

    Attributes:
        name: name of its directory.
        dtype: dtype of its weights.
        max_position_embeddings: longest context it was made for, tokens.
        num_parameters: number of weights.
        kv_values: numbers that the KV cache holds per token, all layers together.
    """

    name: str
    dtype: str
    max_position_embeddings: int
    num_parameters: int
    kv_values: int


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What the devices say.

    Attributes:
        platform: "cpu" or "gpu".
        count: devices that share the model.
        memory: bytes that one device (or the host, for CPUs) can give; of a GPU, `gpu_memory_fraction` is taken off already.
        slow_bfloat16_scatter: whether writing a bfloat16 cache would convert all of it (XLA's CPU backend before jax 0.11).
    """

    platform: str
    count: int
    memory: int
    slow_bfloat16_scatter: bool


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """Values for everything that could be "auto".

    Attributes:
        served_model_name: the name requests use.
        dtype, kv_dtype: of weights and activations, and of the KV cache.
        max_model_len: longest prompt plus output, tokens.
        num_pages: pages of the KV cache, the null page included.
        weight_bytes, cache_bytes: memory of all devices together.
        compile_first: whether serving begins when a few steps are compiled.
    """

    served_model_name: str
    dtype: str
    kv_dtype: str
    max_model_len: int
    num_pages: int
    weight_bytes: int
    cache_bytes: int
    compile_first: bool


def resolve(config: EngineConfig, model: ModelFacts, devices: DeviceFacts) -> ResolvedConfig:
    """Choose every "auto". Raises ConfigError, with the numbers that conflict, for what cannot be."""
    dtype = model.dtype if config.model.dtype == "auto" else config.model.dtype
    kv_dtype = "float32" if devices.slow_bfloat16_scatter and dtype == "bfloat16" else dtype
    weight_bytes = model.num_parameters * BYTES[dtype]
    page_bytes = config.cache.page_size * model.kv_values * BYTES[kv_dtype]
    max_model_len = _max_model_len(config, model)
    num_pages = _num_pages(config, devices, max_model_len, weight_bytes, page_bytes)
    fitting = (num_pages - 1) * config.cache.page_size
    if fitting < 2:
        raise ConfigError(f"num_pages is {num_pages}: the KV cache must hold a prompt's token and one more", param="num_pages")
    if fitting < max_model_len:
        if config.model.max_model_len is not None:
            raise ConfigError(
                f"max_model_len is {max_model_len} tokens, but the KV cache holds {fitting} "
                f"({num_pages - 1} pages of {config.cache.page_size}); lower max_model_len or give the cache more memory",
                param="max_model_len",
            )
        max_model_len = fitting
    return ResolvedConfig(
        served_model_name=config.model.served_model_name or model.name,
        dtype=dtype,
        kv_dtype=kv_dtype,
        max_model_len=max_model_len,
        num_pages=num_pages,
        weight_bytes=weight_bytes,
        cache_bytes=num_pages * page_bytes,
        compile_first=_compile_first(config, devices),
    )


def _compile_first(config: EngineConfig, devices: DeviceFacts) -> bool:
    """A GPU's programs take up to a minute each; a CPU's models are small, and their results should not depend on timing."""
    asked = config.compile.before_ready
    return devices.platform != "cpu" if asked == "auto" else asked == "first"


def dump_directory(config: RecordConfig) -> Path:
    """Where crash dumps go."""
    return Path(config.dump_dir).expanduser() if config.dump_dir else Path.home() / ".cache" / "jaxserve" / "dumps"


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


def _num_pages(config: EngineConfig, devices: DeviceFacts, max_model_len: int, weight_bytes: int, page_bytes: int) -> int:
    """Pages as asked for; else as many as could ever be used, if memory allows, else what memory allows."""
    if config.cache.num_pages is not None:
        return config.cache.num_pages
    useful = config.scheduler.max_num_seqs * -(-max_model_len // config.cache.page_size) + 1
    if config.cache.kv_cache_memory_gib is not None:
        budget = int(config.cache.kv_cache_memory_gib * 2**30)
    elif devices.platform == "cpu":
        budget = min(CPU_CACHE_BYTES, max(devices.memory - weight_bytes, 0) // 2)
    else:
        per_device = devices.memory - weight_bytes // devices.count - WORKSPACE_BYTES
        budget = max(per_device, 0) * devices.count
        useful = budget // page_bytes  # a GPU's memory has no better use than cached prefixes
    pages = min(useful, budget // page_bytes)
    if pages < 2:
        raise ConfigError(
            f"no memory for a KV cache: {budget / 2**30:.2f} GiB left after {weight_bytes / 2**30:.2f} GiB of weights, "
            f"one page takes {page_bytes / 2**20:.2f} MiB",
            param="kv_cache_memory_gib",
        )
    return pages
