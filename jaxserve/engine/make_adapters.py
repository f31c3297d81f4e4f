"""The adapters that an engine begins with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from jaxserve.adapters.directory import read_adapter
from jaxserve.adapters.folder import AdapterFolder
from jaxserve.adapters.peft import AdapterFormat
from jaxserve.adapters.store import AdapterStore
from jaxserve.adapters.trees import AdapterTrees
from jaxserve.config.lora import LoraConfig
from jaxserve.engine.adapters import EngineAdapters
from jaxserve.errors import ConfigError
from jaxserve.executor.local import LocalExecutor
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.memory import device_bytes
from jaxserve.scheduler.adapters import AdapterTable
from sharding import shards_of


def make_adapters(
    config: LoraConfig, lowering: Lowering, executor: LocalExecutor, base_models: Sequence[str]
) -> EngineAdapters | None:
    """Those that an engine begins with; None if it serves none. `base_models` are names of what they are over.

    Raises CheckpointError for one that cannot be served, ConfigError for one that is said to be of another model, or where the
    directory that is to be watched is not there.
    """
    if executor.adapters is None or config.shape is None:
        return None
    shards, shape = shards_of(lowering.mesh), config.shape
    form = AdapterFormat(lowering.config, shards, shape.rank, lowering.options.dtype, experts=shape.experts)
    read = partial(read_adapter, form=form, max_rank=config.max_lora_rank)
    store = AdapterStore(read, config.max_cpu_loras, shape.slots, form.num_bytes, executor.adapters, base_models[0])
    for module in config.modules():
        if module.base_model_name not in (None, *base_models):
            named = f"{module.name!r} is of {module.base_model_name!r}"
            raise ConfigError(f"lora_modules: {named}, and {base_models[0]!r} is served", param="lora_modules")
        store.load(module.name, module.path, pin=module.pin)
    table, trees = AdapterTable(shape.slots, store.fetch, lambda: store.pinned), AdapterTrees(form, config.max_lora_rank)
    folder = None if config.lora_dir is None else AdapterFolder(store, Path(config.lora_dir))
    if folder is not None:
        folder.look()
        folder.start()
    return EngineAdapters(store, table, trees, device_bytes(lowering.loras), folder)
