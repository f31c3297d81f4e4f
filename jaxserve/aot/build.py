"""Compiles the asked steps for a target, one after another, collects what is worth knowing of each, and saves them if asked."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from jaxserve.aot.facts import Facts, read_facts
from jaxserve.aot.hlo import Module
from jaxserve.aot.ledger import Ledger, first_ledger
from jaxserve.aot.settings import TargetConfig
from jaxserve.aot.shapes import decoder
from jaxserve.aot.target import Target
from jaxserve.aot.thunks import Launches, read_launches
from jaxserve.config.resolve import DeviceFacts, ModelFacts, resolve, resolve_dtypes
from jaxserve.config.windows import group_layers
from jaxserve.errors import ConfigError
from jaxserve.executor.compile_cache import nothing_kept
from jaxserve.executor.lowering import Lowering, step_name
from jaxserve.executor.memory import count_bytes, device_bytes
from jaxserve.executor.options import ExecutorOptions, chosen_kernels
from jaxserve.executor.program_bundle import save_programs
from jaxserve.models.config import DecoderConfig
from jaxserve.step.buckets import Bucket
from sharding import make_mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStep:
    """One bucket.

    Attributes:
        tokens, rows: of the bucket.
        seconds: lowering and compiling.
        temporary: workspace, bytes on each device.
        state_in_place: whether everything that lives from step to step, the cache included, is updated where it is.
        facts: what the program does.
        launches: what it launches; None where XLA wrote no list: on CPUs, and of programs that are saved.
    """

    tokens: int
    rows: int
    seconds: float
    temporary: int
    state_in_place: bool
    facts: Facts
    launches: Launches | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Programs that were written.

    Attributes:
        directory: where.
        names: of the programs.
        bytes: of all files.
    """

    directory: str
    names: tuple[str, ...]
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Everything that was found out.

    Attributes:
        config: the question.
        device: the devices' name.
        on_gpu: whether they are GPUs.
        jax: version that compiled.
        dtype: of weights and activations.
        num_layers, num_parameters: of what was compiled.
        num_pages: of the KV cache that the programs are for.
        ledger: memory of one device.
        steps: by bucket.
        saved: what was written, if asked.
    """

    config: TargetConfig
    device: str
    on_gpu: bool
    jax: str
    dtype: str
    num_layers: int
    num_parameters: int
    num_pages: int
    ledger: Ledger
    steps: tuple[CompiledStep, ...]
    saved: Saved | None


Done = Callable[[CompiledStep], None]
"""Told after every bucket."""


@nothing_kept()
def compile_for(config: TargetConfig, done: Done, output: Path | None = None) -> Result:
    """Compile and look. If there is an `output`, save the programs there, those that are not steps among them.

    Raises:
        ConfigError: settings that make no sense together, a target that is too small, no CUDA plugin, or steps to save that the
            engine does not have.
        UnsupportedModelError, CheckpointError: the model.
    """
    target, model = Target.parse(config.target), decoder(config.model, config.layers)
    if config.tp > target.count:
        raise ConfigError(f"tp is {config.tp}, but the target has {target.count} devices", param="tp")
    mesh = make_mesh(config.tp // config.ep, target.devices(), expert=config.ep)
    ledger, lowering = _plan(config, target, model, mesh)
    buckets = config.buckets(lowering.grid)
    if output is not None:
        _require_known(buckets, lowering)
    dumps = target.gpu is not None and output is None  # the dump's path would be saved with the program
    steps, programs = [], {}
    for bucket in buckets:
        step, programs[step_name(bucket)] = _compile(lowering, bucket, dumps=dumps)
        steps.append(step)
        done(step)
    ledger = replace(ledger, temporary=max(step.temporary for step in steps))
    if target.gpu is not None:
        ledger.require_room(_tokens(config, model), target=config.target)
    return Result(
        config=config,
        device=target.name,
        on_gpu=target.gpu is not None,
        jax=jax.__version__,
        dtype=lowering.options.dtype,
        num_layers=model.num_layers,
        num_parameters=model.num_parameters,
        num_pages=lowering.options.num_pages,
        ledger=ledger,
        steps=tuple(steps),
        saved=None if output is None else _save(output, lowering, programs),
    )


def _plan(config: TargetConfig, target: Target, model: DecoderConfig, mesh: Mesh) -> tuple[Ledger, Lowering]:
    """What an engine with these settings would choose on the target."""
    engine, devices = config.engine(), target.facts(list(mesh.devices.flat), config.gpu_memory_fraction)
    stored = ModelFacts(config.model, model.dtype, model.max_position_embeddings, group_layers(model.windows).windows)
    count = partial(count_bytes, model, mesh, engine)
    ledger = first_ledger(
        memory=_memory(target, devices),
        usable=_usable(devices),
        held=count(*resolve_dtypes(engine, stored, devices)),
        page_size=config.page_size,
        groups=len(stored.windows),
    )
    if target.gpu is not None:
        ledger.require_room(_tokens(config, model), target=config.target)
    resolved = resolve(engine, stored, devices, count)
    options = ExecutorOptions.of(engine, resolved, chosen_kernels(engine, model.num_layers))
    return ledger, Lowering(model, mesh, options)


def _memory(target: Target, devices: DeviceFacts) -> int:
    return _usable(devices) if target.gpu is None else target.gpu.memory_bytes


def _usable(devices: DeviceFacts) -> int:
    """Of one device; CPU devices share the host's memory."""
    return devices.memory // devices.count if devices.platform == "cpu" else devices.memory


def _tokens(config: TargetConfig, model: DecoderConfig) -> int:
    """Tokens that the KV cache must hold: all that were asked for, or one sequence."""
    if config.num_pages is not None:
        return config.num_pages * config.page_size // len(group_layers(model.windows).windows)
    return config.max_model_len or model.max_position_embeddings


def _compile(lowering: Lowering, bucket: Bucket, *, dumps: bool) -> tuple[CompiledStep, Any]:
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        program = lowering.step(bucket).compile({"xla_dump_to": directory} if dumps else {})
        seconds = time.monotonic() - started
        launches = read_launches(Path(directory)) if dumps else None
    memory = program.memory_analysis()
    pages = lowering.state.kv_pages
    facts = read_facts(
        Module.parse(program.as_text()),
        tokens=bucket.tokens,
        hidden_size=lowering.config.hidden_size,
        cache_elements=device_bytes(pages) // pages.dtype.itemsize,
    )
    step = CompiledStep(
        tokens=bucket.tokens,
        rows=bucket.rows,
        seconds=seconds,
        temporary=int(memory.temp_size_in_bytes),
        state_in_place=int(memory.alias_size_in_bytes) >= device_bytes(lowering.state),
        facts=facts,
        launches=launches,
    )
    return step, program


def _require_known(buckets: list[Bucket], lowering: Lowering) -> None:
    """Check that the engine would ever run these steps."""
    grid = lowering.grid.buckets
    unknown = [f"{bucket.tokens} x {bucket.rows}" for bucket in buckets if bucket not in grid]
    if unknown:
        raise ConfigError(
            f"the engine has no step of {', '.join(unknown)} (tokens x rows); it has "
            f"{', '.join(f'{bucket.tokens} x {bucket.rows}' for bucket in grid)}",
            param="rows",
        )


def _save(output: Path, lowering: Lowering, programs: dict[str, Any]) -> Saved:
    programs |= {spec.name: spec.compile() for spec in lowering.others()}
    size = save_programs(output, lowering, programs)
    return Saved(directory=str(output), names=tuple(programs), bytes=size)
