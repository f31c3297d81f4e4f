"""Compiles the asked steps for a target, one after another, collects what is worth knowing of each, and saves them if asked."""

from __future__ import annotations

import logging
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
from jaxserve.aot.ledger import CompiledMemory, first_ledger
from jaxserve.aot.settings import TargetConfig
from jaxserve.aot.shapes import decoder
from jaxserve.aot.target import Target
from jaxserve.aot.thunks import Launches, read_launches
from jaxserve.config.resolve import DeviceFacts, ModelFacts, resolve, resolve_dtypes
from jaxserve.config.windows import group_layers
from jaxserve.errors import ConfigError
from jaxserve.executor.autotune_results import require_results
from jaxserve.executor.compile_cache import nothing_kept
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.memory import count_bytes, device_bytes
from jaxserve.executor.options import ExecutorOptions, chosen_kernels
from jaxserve.executor.program_bundle import save_programs
from jaxserve.executor.program_spec import ProgramSpec
from jaxserve.executor.programs import temporary_bytes
from jaxserve.executor.slow_kernels import slow_kernels
from jaxserve.jax_settings import engine_settings
from jaxserve.models.config import DecoderConfig
from jaxserve.models.shards import expert_groups
from jaxserve.step.buckets import Bucket
from jaxserve.weights.formats import has_weights
from jaxserve.weights.stored_schemes import Schemes, stored_schemes
from pallas_kernels.registry import Target as KernelTarget
from sharding import make_mesh

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledHalf:
    """A program of a step.

    Attributes:
        name: the program's.
        seconds: lowering and compiling.
        in_place: bytes on each device that are updated where they are.
        launches: what it launches; None where XLA wrote no list: on CPUs, and of programs that are saved.
    """

    name: str
    seconds: float
    in_place: int
    facts: Facts
    launches: Launches | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStep:
    """One bucket.

    Attributes:
        seconds: lowering and compiling.
        temporary: workspace and logits of the steps in flight, bytes on each device.
        state_in_place: whether everything that lives from step to step, the cache included, is updated where it is.
        forward: the first half.
        choices: the second half, by the names of variants, cheapest first.
        drafts: that each row may have.
    """

    tokens: int
    rows: int
    seconds: float
    temporary: int
    state_in_place: bool
    forward: CompiledHalf
    choices: dict[str, CompiledHalf]
    drafts: int = 0

    @property
    def halves(self) -> tuple[CompiledHalf, ...]:
        """All programs that steps of this bucket launch two of."""
        return (self.forward, *self.choices.values())

    @property
    def facts(self) -> Facts:
        """Of a step whose rows need least."""
        return self.forward.facts + next(iter(self.choices.values())).facts

    @property
    def launches(self) -> Launches | None:
        """Of a step whose rows need least."""
        forward, choice = self.forward.launches, next(iter(self.choices.values())).launches
        return None if forward is None or choice is None else forward + choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Programs that were written."""

    directory: str
    names: tuple[str, ...]
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Everything that was found out.

    Attributes:
        device: the devices' name.
        dtype: of weights and activations; `kv_dtype` is that of the KV cache.
        num_layers, num_parameters: of what was compiled.
        num_pages: of the KV cache that the programs are for.
        ledger: memory of one device.
        saved: what was written, if asked.
    """

    config: TargetConfig
    device: str
    on_gpu: bool
    jax: str
    dtype: str
    kv_dtype: str
    num_layers: int
    num_parameters: int
    num_pages: int
    ledger: CompiledMemory
    steps: tuple[CompiledStep, ...]
    saved: Saved | None


Done = Callable[[CompiledStep], None]
"""Told after every bucket."""


@engine_settings()
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
    devices = target.devices()
    groups = expert_groups(model, config.tp, KernelTarget.of(devices[0])) if config.ep is None else config.ep
    mesh = make_mesh(config.tp // groups, devices, expert=groups)
    ledger, lowering = _plan(config, target, model, mesh)
    slow = slow_kernels(lowering.config, mesh, lowering.options)
    if slow is not None:
        logger.warning("%s", slow)
    buckets = config.buckets(lowering.grid)
    variants = config.chosen(lowering.variants)
    if output is not None:
        _require_known(buckets, lowering)
    dumps = target.gpu is not None and output is None  # the dump's path would be saved with the program
    steps: list[CompiledStep] = []
    programs: dict[str, Any] = {}
    choices: dict[tuple[int, int], dict[str, CompiledHalf]] = {}  # by rows and drafts, and by the variant's name
    for bucket in buckets:
        compile_half = partial(_compile_half, lowering, bucket, programs, dumps=dumps)
        chosen = choices.get((bucket.rows, bucket.drafts))
        if chosen is None:
            specs = {variant.name: lowering.choose(bucket.rows, variant, bucket.drafts) for variant in variants}
            chosen = choices[bucket.rows, bucket.drafts] = {name: compile_half(spec) for name, spec in specs.items()}
        step = _step(lowering, bucket, compile_half(lowering.forward(bucket)), chosen, programs)
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
        kv_dtype=lowering.options.kv_dtype,
        num_layers=model.num_layers,
        num_parameters=model.num_parameters,
        num_pages=lowering.options.num_pages,
        ledger=ledger,
        steps=tuple(steps),
        saved=None if output is None else _save(output, lowering, programs),
    )


def _plan(config: TargetConfig, target: Target, model: DecoderConfig, mesh: Mesh) -> tuple[CompiledMemory, Lowering]:
    engine, devices = config.engine(), target.facts(list(mesh.devices.flat), config.gpu_memory_fraction)
    stored = ModelFacts(config.model, model.dtype, model.max_position_embeddings, group_layers(model.cache_windows).windows)
    schemes = _stored_schemes(config, model)
    count = partial(count_bytes, model, mesh, engine, stored=schemes)
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
    options = ExecutorOptions.of(engine, resolved, chosen_kernels(engine, model.num_layers), schemes)
    require_results(options.autotune_results)
    return ledger, Lowering(model, mesh, options)


def _stored_schemes(config: TargetConfig, model: DecoderConfig) -> Schemes:
    """Of a checkpoint; a shape or a directory without weights says nothing of them."""
    directory = Path(config.model)
    return stored_schemes(directory, model, "auto") if has_weights(directory) else ()


def _memory(target: Target, devices: DeviceFacts) -> int:
    return _usable(devices) if target.gpu is None else target.gpu.memory_bytes


def _usable(devices: DeviceFacts) -> int:
    """Of one device; CPU devices share the host's memory."""
    return devices.memory // devices.count if devices.platform == "cpu" else devices.memory


def _tokens(config: TargetConfig, model: DecoderConfig) -> int:
    """Tokens that the KV cache must hold: all that were asked for, or one sequence."""
    if config.num_pages is not None:
        return config.num_pages * config.page_size // len(group_layers(model.cache_windows).windows)
    return config.max_model_len or model.max_position_embeddings


def _compile_half(
    lowering: Lowering, bucket: Bucket, programs: dict[str, Any], spec: ProgramSpec, *, dumps: bool
) -> CompiledHalf:
    """One half of the bucket's steps; its program joins `programs`."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        program = spec.compile({"xla_dump_to": directory} if dumps else {})
        launches = read_launches(Path(directory)) if dumps else None
    seconds = time.monotonic() - started
    programs[spec.name] = program
    facts = read_facts(
        Module.parse(program.as_text()),
        tokens=bucket.tokens,
        hidden_size=lowering.config.hidden_size,
        cache_elements=tuple(
            device_bytes(array) // array.dtype.itemsize for array in jax.tree.leaves(lowering.state.forward.cache)
        ),
    )
    in_place = int(program.memory_analysis().alias_size_in_bytes)
    return CompiledHalf(name=spec.name, seconds=seconds, in_place=in_place, facts=facts, launches=launches)


def _step(
    lowering: Lowering, bucket: Bucket, forward: CompiledHalf, choices: dict[str, CompiledHalf], programs: dict[str, Any]
) -> CompiledStep:
    compiled = [programs[half.name] for half in (forward, *choices.values())]
    return CompiledStep(
        tokens=bucket.tokens,
        rows=bucket.rows,
        seconds=forward.seconds + sum(choice.seconds for choice in choices.values()),
        temporary=temporary_bytes(compiled, compiled[:1]),
        state_in_place=forward.in_place + min(choice.in_place for choice in choices.values()) >= device_bytes(lowering.state),
        forward=forward,
        choices=choices,
        drafts=bucket.drafts,
    )


def _require_known(buckets: list[Bucket], lowering: Lowering) -> None:
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
