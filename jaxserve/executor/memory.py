"""How much memory the devices have, and how much of it a model takes, from shapes alone."""

from __future__ import annotations

import math
from typing import Any

import jax
from jax.sharding import Mesh

from jaxserve.config.fields import EngineConfig
from jaxserve.config.resolve import DeviceBytes, DeviceFacts, state_places
from jaxserve.executor.draft_specs import draft_cache
from jaxserve.executor.draft_step import DraftModel
from jaxserve.executor.host_memory import available_host_memory
from jaxserve.executor.lora import abstract_loras
from jaxserve.executor.step import StateShape, abstract_state
from jaxserve.models.config import DecoderConfig
from jaxserve.step.buckets import BucketGrid
from jaxserve.weights.abstract import placed_params
from jaxserve.weights.packed import Packer
from jaxserve.weights.stored_schemes import Schemes

_COUNTED_PAGES = 2  # of the cache whose bytes are counted: one page of it is a half


def device_bytes(tree: Any) -> int:
    """Bytes that one device holds of a tree of arrays, or of shapes with shardings."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def count_bytes(
    decoder: DecoderConfig, mesh: Mesh, config: EngineConfig, dtype: str, kv_dtype: str, stored: Schemes = ()
) -> DeviceBytes:
    """What one device will hold, to the byte; `stored` as in ExecutorOptions.

    Raises ConfigError for a decoder that cannot be divided over the mesh, and for matrices that cannot be quantized as asked.
    """
    scheduler, longest = config.scheduler, config.model.max_model_len or decoder.max_position_embeddings
    grid = BucketGrid.for_platform(
        mesh.devices.flat[0].platform, max_rows=scheduler.max_num_seqs, max_tokens=scheduler.max_num_batched_tokens
    )
    shape = StateShape(
        slots=scheduler.max_num_seqs,
        num_pages=_COUNTED_PAGES,
        page_size=config.cache.page_size,
        max_pages=-(-longest // config.cache.page_size),
        max_tokens=grid.max_tokens,
        kv_dtype=kv_dtype,
        dtype=dtype,
        routed_experts=config.model.enable_return_routed_experts,
        state_places=state_places(config).count,
    )
    state = abstract_state(decoder, mesh, shape)
    cache = device_bytes(state.forward.cache)
    packer = Packer(decoder, mesh, config.model.quantization, stored)
    return DeviceBytes(
        weights=device_bytes(packer.shapes(placed_params(decoder, mesh, dtype))),
        state=device_bytes(state) - cache,
        page=cache // _COUNTED_PAGES,
        adapters=adapter_bytes(decoder, mesh, config, dtype),
    )


def adapter_bytes(decoder: DecoderConfig, mesh: Mesh, config: EngineConfig, dtype: str) -> int:
    """What one device will hold of adapters."""
    shape = config.lora.shape
    return 0 if shape is None else device_bytes(abstract_loras(decoder, mesh, dtype, shape))


def draft_bytes(draft: DraftModel, mesh: Mesh, page_size: int, dtype: str, kv_dtype: str) -> DeviceBytes:
    """What one device will hold of a draft model beside its target; its part of a page is in every page."""
    cache = draft_cache(draft.config, mesh, _COUNTED_PAGES, page_size, kv_dtype)
    packer = Packer(draft.config, mesh, draft.quantization, draft.stored)
    return DeviceBytes(
        weights=device_bytes(packer.shapes(placed_params(draft.config, mesh, dtype))),
        state=0,
        page=device_bytes(cache) // _COUNTED_PAGES,
    )


def device_facts(device: jax.Device, count: int) -> DeviceFacts:
    """What `count` devices such as this one say of themselves."""
    memory = host_memory = available_host_memory()
    if device.platform != "cpu":
        said = device.memory_stats() or {}
        memory = int(said.get("bytes_limit", 0)) - int(said.get("bytes_in_use", 0))
    slow = device.platform == "cpu" and jax.__version_info__ < (0, 11)
    return DeviceFacts(device.platform, count, memory, slow_bfloat16_scatter=slow, host_memory=host_memory)
