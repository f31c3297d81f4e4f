"""Compiles the asked steps for a target, one after another, and collects what is worth knowing of each."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from jaxserve.aot.facts import Facts, read_facts
from jaxserve.aot.hlo import Module
from jaxserve.aot.ledger import Ledger, device_bytes, first_ledger
from jaxserve.aot.settings import TargetConfig
from jaxserve.aot.shapes import decoder
from jaxserve.aot.target import Target
from jaxserve.aot.thunks import Launches, read_launches
from jaxserve.config.kernels import AUTOMATIC
from jaxserve.errors import ConfigError
from jaxserve.executor.buckets import CHUNK_ROWS, Bucket
from jaxserve.executor.lowering import StepLowering, example_batch
from jaxserve.executor.step import StateShape, abstract_state
from jaxserve.models.binding import Params, abstract_params, param_shardings
from jaxserve.models.config import DecoderConfig
from sharding import TENSOR, make_mesh

DTYPE = "bfloat16"  # of weights, activations and cache
FIRST_PAGES = 2  # of the cache whose ledger says how large the real one is


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStep:
    """One bucket.

    Attributes:
        tokens, rows: of the bucket.
        seconds: lowering and compiling.
        temporary: workspace, bytes on each GPU.
        state_in_place: whether everything that lives from step to step, the cache included, is updated where it is.
        facts, launches: what the program does.
    """

    tokens: int
    rows: int
    seconds: float
    temporary: int
    state_in_place: bool
    facts: Facts
    launches: Launches


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Everything that was found out.

    Attributes:
        config: the question.
        gpu: the GPU's name.
        jax: version that compiled.
        num_layers, num_parameters: of what was compiled.
        num_pages: of the KV cache that the programs are for.
        ledger: memory of one GPU.
        steps: by bucket.
    """

    config: TargetConfig
    gpu: str
    jax: str
    num_layers: int
    num_parameters: int
    num_pages: int
    ledger: Ledger
    steps: tuple[CompiledStep, ...]


Done = Callable[[CompiledStep], None]
"""Told after every bucket."""


def compile_for(config: TargetConfig, done: Done) -> Result:
    """Compile and look.

    Raises:
        ConfigError: settings that make no sense together, a target that is too small, or no CUDA plugin.
        UnsupportedModelError, CheckpointError: the model.
    """
    target, model = Target.parse(config.target), decoder(config.model, config.layers)
    if config.tp > target.count:
        raise ConfigError(f"tp is {config.tp}, but the target has {target.count} GPUs", param="tp")
    max_model_len = _max_model_len(config, model)
    mesh = make_mesh(config.tp, target.devices())
    params = _params(model, mesh)
    small = abstract_state(model, mesh, _state_shape(config, FIRST_PAGES))
    ledger = first_ledger(
        memory=target.gpu.memory_bytes,
        fraction=config.gpu_memory_fraction,
        params=params,
        state=small,
        kv_pages=small.kv_pages,
        page_size=config.page_size,
    )
    ledger.require_room(max_model_len, target=config.target)
    num_pages = ledger.tokens // config.page_size
    state = abstract_state(model, mesh, _state_shape(config, num_pages))
    example = partial(
        example_batch, max_pages=-(-max_model_len // config.page_size), page_size=config.page_size, spare_slot=config.max_num_seqs
    )
    lowering = StepLowering(model, mesh, params, state, example, AUTOMATIC)
    steps = []
    for bucket in _buckets(config):
        step = _compile(lowering, bucket, model)
        steps.append(step)
        done(step)
    ledger = replace(ledger, temporary=max(step.temporary for step in steps))
    ledger.require_room(max_model_len, target=config.target)
    return Result(
        config=config,
        gpu=target.gpu.name,
        jax=jax.__version__,
        num_layers=model.num_layers,
        num_parameters=model.num_parameters,
        num_pages=num_pages,
        ledger=ledger,
        steps=tuple(steps),
    )


def _compile(lowering: StepLowering, bucket: Bucket, model: DecoderConfig) -> CompiledStep:
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        program = lowering.compile(bucket, {"xla_dump_to": directory})
        seconds = time.monotonic() - started
        launches = read_launches(Path(directory))
    memory = program.memory_analysis()
    pages = lowering.state.kv_pages
    facts = read_facts(
        Module.parse(program.as_text()),
        tokens=bucket.tokens,
        hidden_size=model.hidden_size,
        cache_elements=device_bytes(pages) // pages.dtype.itemsize,
    )
    return CompiledStep(
        tokens=bucket.tokens,
        rows=bucket.rows,
        seconds=seconds,
        temporary=int(memory.temp_size_in_bytes),
        state_in_place=int(memory.alias_size_in_bytes) >= device_bytes(lowering.state),
        facts=facts,
        launches=launches,
    )


def _buckets(config: TargetConfig) -> Iterator[Bucket]:
    """Decode steps, then steps with prompts."""
    for rows in config.decode_rows:
        yield Bucket(rows, rows)
    for tokens in config.prompt_tokens:
        yield Bucket(tokens, min(CHUNK_ROWS, config.max_num_seqs, tokens))


def _state_shape(config: TargetConfig, num_pages: int) -> StateShape:
    return StateShape(
        slots=config.max_num_seqs,
        num_pages=num_pages,
        page_size=config.page_size,
        max_tokens=max(*config.decode_rows, *config.prompt_tokens, config.max_num_seqs),
        kv_dtype=DTYPE,
        dtype=DTYPE,
    )


def _params(model: DecoderConfig, mesh: Mesh) -> Params:
    """Shapes and shardings of the weights."""
    shardings = param_shardings(model, mesh)

    def place(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=shardings[tuple(str(key.key) for key in path)])

    params: Params = jax.tree.map_with_path(place, abstract_params(model, DTYPE, mesh.shape[TENSOR]))
    return params


def _max_model_len(config: TargetConfig, model: DecoderConfig) -> int:
    limit = model.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > limit:
        raise ConfigError(
            f"max_model_len is {config.max_model_len} tokens, but the model was made for {limit}", param="max_model_len"
        )
    return config.max_model_len or limit
