"""Builds an engine from its configuration: model, weights, cache, programs, tokenizer; and reports what it built."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.prefix_hash import CacheNamespace
from jaxserve.cache.state_pool import StatePool
from jaxserve.cache.swap import SwapSpace
from jaxserve.chat_parsing.template import ResponseTemplate
from jaxserve.clock import Clock
from jaxserve.config.fields import EngineConfig, SchedulerConfig
from jaxserve.config.policies import Policies
from jaxserve.config.resolve import dump_directory
from jaxserve.engine.adapter_updates import AdapterUpdates
from jaxserve.engine.adapters import EngineAdapters
from jaxserve.engine.budgets import Budgets
from jaxserve.engine.client import ModelInfo
from jaxserve.engine.control import EngineControl
from jaxserve.engine.core import EngineCore
from jaxserve.engine.draft import load_draft
from jaxserve.engine.draft_updates import DraftUpdates
from jaxserve.engine.given import GivenParams
from jaxserve.engine.intake import Intake, IntakeLimits
from jaxserve.engine.make_adapters import make_adapters
from jaxserve.engine.phases import NO_TIMES, PhaseTimer, StartTimes
from jaxserve.engine.preparation import Preparation, model_directory, prepare
from jaxserve.engine.publishing import publish
from jaxserve.engine.routed_experts import RoutedExperts
from jaxserve.engine.sleeping import Sleep
from jaxserve.engine.startup import both
from jaxserve.engine.warm import Warmer
from jaxserve.engine.weight_checks import WeightChecks
from jaxserve.engine.weight_transfer import WeightTransfer
from jaxserve.engine.weight_updates import WeightUpdates, WeightVersion
from jaxserve.errors import UnsupportedModelError
from jaxserve.executor.base import Capabilities
from jaxserve.executor.cache_arrays import describe_cache
from jaxserve.executor.draft_runner import DraftWeights
from jaxserve.executor.draft_step import DraftModel
from jaxserve.executor.local import LocalExecutor
from jaxserve.executor.programs import CompileProgress, make_programs
from jaxserve.executor.routed_experts import RoutedLayout
from jaxserve.executor.slow_kernels import slow_kernels
from jaxserve.executor.weight_schemes import describe_weights
from jaxserve.grammar.grammars import Grammars
from jaxserve.grammar.vocabulary import load_vocabulary
from jaxserve.grammar.worker import WorkerSpec
from jaxserve.jax_settings import caller_settings, engine_settings
from jaxserve.models.binding import Params
from jaxserve.models.config import DecoderConfig
from jaxserve.record.crash import CrashDumper
from jaxserve.record.recording import RecordHeader
from jaxserve.record.ring import StepRing
from jaxserve.sampling.options import SUPPRESS_WIDTH
from jaxserve.sampling.params import MAX_STOP_TOKEN_IDS
from jaxserve.scheduler.adapters import AdapterTable
from jaxserve.scheduler.running import tell_nobody
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.speculation.make import make_speculation
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.tokenizer.chat import ChatTemplate
from jaxserve.types import ServiceClass
from jaxserve.versions import version_of
from jaxserve.weights.fingerprint import model_fingerprint
from jaxserve.weights.jobs import collect
from jaxserve.weights.live.incoming import LiveModel
from jaxserve.weights.load import load_params
from jaxserve.weights.packed import Packer
from jaxserve.weights.recheck import BlockSums, WeightGuard, guard_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """Where the memory of one device goes, bytes, as its programs and shapes say.

    `temporary` is the largest step's workspace, `adapters` are their slots.
    """

    weights: int
    kv_cache: int
    temporary: int
    kv_tokens: int
    adapters: int = 0


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What was built, for people."""

    model: ModelInfo
    kv_dtype: str
    mesh: str
    page_size: int
    memory: MemoryLedger
    scheduler: SchedulerConfig
    buckets: tuple[str, ...]
    start: StartTimes


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    core: EngineCore
    intake: Intake
    tokenizer: Tokenizer | None
    chat_template: ChatTemplate | None
    report: EngineReport
    clock: Clock
    responses: ResponseTemplate | None = None
    weights: WeightUpdates | None = None
    sleep: Sleep | None = None
    routed: RoutedExperts | None = None
    adapters: EngineAdapters | None = None


@engine_settings()
def build_engine(
    config: EngineConfig, *, strict_length: bool, clock: Clock, progress: CompileProgress, given: GivenParams | None = None
) -> BuiltEngine:
    """Load and compile everything. Raises CheckpointError, UnsupportedModelError or ConfigError.

    Args:
        config: the configuration.
        strict_length: whether a request for more output than the context holds is refused, not cut short.
        clock: time for requests.
        progress: told about loading and compiling.
        given: the weights, if they are not to be loaded.
    """
    progress = caller_settings()(progress)
    times = PhaseTimer()
    ready = prepare(config)
    slow = slow_kernels(ready.decoder, ready.lowering.mesh, ready.lowering.options)
    if slow is not None:
        logger.warning("%s", slow)
    times.ended("files")
    loaded, compiled = both(
        partial(_load, config, ready, given), partial(make_programs, ready.lowering, saved=ready.saved), progress
    )
    times.ended("building")
    weights, guard = loaded.result, loaded.result.guard
    executor = LocalExecutor(ready.lowering, compiled.result, weights.params, guard, weights.draft)
    resolved, decoder, tokenizer = ready.resolved, ready.decoder, ready.tokenizer
    grammars = _grammars(config, ready)
    routed = _routed_experts(ready, executor)
    adapters = make_adapters(config.lora, ready.lowering, executor, resolved.served_model_names)
    table = None if adapters is None else adapters.table
    scheduler = _scheduler(config, ready, executor, grammars, clock, routed, table)
    fingerprint = weights.fingerprint or model_fingerprint(ready.directory, decoder, config.model)
    dumper = crash_dumper(config, resolved.served_model_names[0], fingerprint, executor.capabilities())
    core = EngineCore(scheduler, executor, overlap=config.scheduler.overlap, dumper=dumper, grammars=grammars)
    core.adapters = adapters
    core.settings = engine_settings
    core.weight_version = None if given is None else given.version
    intake = _intake(config, ready, fingerprint, scheduler.cache, strict=strict_length)
    intake.weights_are(core.weight_version)

    def told(version: WeightVersion | None, fingerprint: str) -> None:
        intake.weights_are(version)
        if dumper is not None:
            dumper.model_is(fingerprint)

    updates = WeightUpdates(core, executor, partial(_live_model, config, ready), told, fingerprint)
    sleep = Sleep(core, executor, updates)
    core.control = _control(core, executor, updates, sleep, ready, adapters)
    built = BuiltEngine(
        core=core,
        intake=intake,
        tokenizer=tokenizer,
        chat_template=ready.chat_template,
        report=_report(config, ready, executor, fingerprint),
        clock=clock,
        weights=updates,
        sleep=sleep,
        routed=routed,
        adapters=adapters,
        responses=ready.responses,
    )
    publish(core, config.cache.kv_events, intake.is_plain)
    if guard is not None:
        core.intact = guard.require_intact
        guard.start()
    warmer = Warmer(built.core, built.intake, tokenizer, built.chat_template, clock, resolved.max_model_len)
    times.ended("rest")
    warmer.warm(ready.warm_prompts, progress)
    built.core.tell()
    times.ended("warm")
    return replace(built, report=replace(built.report, start=times.start(loaded.seconds, compiled.seconds)))


def _intake(config: EngineConfig, ready: Preparation, fingerprint: str, cache: KVCache, *, strict: bool) -> Intake:
    """Of its requests. Prefixes are told apart by all that keys and values depend on."""
    held = describe_weights(ready.lowering.params) + (" deterministic" if config.kernels.deterministic else "")
    kv, ropes = describe_cache(ready.resolved.kv_dtype), repr(ready.decoder.ropes)
    namespace = CacheNamespace(fingerprint, kv, ropes, held=held)
    return Intake(ready.tokenizer, _limits(config, ready, strict), namespace, _budgets(config, ready.policies, cache))


def _control(
    core: EngineCore,
    executor: LocalExecutor,
    updates: WeightUpdates,
    sleep: Sleep,
    ready: Preparation,
    adapters: EngineAdapters | None,
) -> EngineControl:
    """What trainers and operators may do to it."""
    draft, checks = None, WeightChecks(executor, updates, ready.lowering.mesh.devices.size)
    if ready.draft is not None and executor.draft_weights is not None:
        live = partial(_live_draft, ready.draft.model, ready)
        draft = DraftUpdates(core, executor.draft_weights, live, updates.changed)
    transfer = WeightTransfer(updates, draft, None if adapters is None else partial(AdapterUpdates, core, adapters))
    return EngineControl(core, core.pause, updates, sleep, transfer=transfer, checks=checks)


def _routed_experts(ready: Preparation, executor: LocalExecutor) -> RoutedExperts | None:
    if not ready.lowering.options.routed_experts:
        return None
    group, groups = RoutedLayout.of(ready.decoder).group, len(executor.capabilities().windows)
    return RoutedExperts(executor.routed_experts, group, groups)


def _scheduler(
    config: EngineConfig,
    ready: Preparation,
    executor: LocalExecutor,
    grammars: Grammars | None,
    clock: Clock,
    routed: RoutedExperts | None,
    adapters: AdapterTable | None,
) -> Scheduler:
    """With the pages that it owns, and who guesses for it."""
    resolved, limits = ready.resolved, executor.capabilities()
    cache = KVCache(
        resolved.num_pages,
        config.cache.page_size,
        prefix_caching=resolved.prefix_caching,
        quota=partial(_quota, ready.policies, resolved.num_pages - 1),
        windows=limits.windows,
        max_chunk=config.scheduler.max_num_batched_tokens,
        states=None if limits.states is None else StatePool(limits.states),
    )
    return Scheduler(
        resolved.scheduler,
        cache,
        resolved.max_model_len,
        clock,
        policies=ready.policies,
        swap=SwapSpace(limits.swap_slots, limits.swap_page_seconds) if limits.swap_slots else None,
        step_sizes=executor.grid.step_sizes,
        masker=None if grammars is None else grammars.masker,
        speculation=make_speculation(config.speculation.parse(), config.scheduler, clock),
        on_stop=tell_nobody if routed is None else routed.stopped,
        adapters=adapters,
    )


def _limits(config: EngineConfig, ready: Preparation, strict: bool) -> IntakeLimits:
    return IntakeLimits(
        max_model_len=ready.resolved.max_model_len,
        vocab_size=ready.decoder.vocab_size,
        eos_token_ids=_eos_token_ids(ready.decoder, ready.tokenizer),
        seed=config.model.seed,
        max_sequences=config.scheduler.max_waiting,
        max_logprob_values=config.scheduler.max_logprob_values,
        max_pooling_bytes=config.scheduler.max_pooling_bytes,
        strict=strict,
        default_max_tokens=ready.default_max_tokens,
        logprobs_mode=config.model.logprobs_mode,
        generates=ready.served.generates,
        pooler=ready.served.pooler,
    )


class _Loaded(NamedTuple):
    """The weights, what watches over them, what they are called if they are a program's, and those of a draft model."""

    params: Params
    guard: WeightGuard | None
    fingerprint: str | None = None
    draft: DraftWeights | None = None


def _load(config: EngineConfig, ready: Preparation, given: GivenParams | None, progress: CompileProgress) -> _Loaded:
    model = config.model
    if given is not None:
        incoming = _live_model(config, ready).check(given.params, given.mapping)
        params = collect(list(incoming.jobs), (weight for _, weight in incoming.parameters()), None)
        minutes = model.recheck_weights_minutes
        guard = guard_of(params, minutes) if minutes else None
        return _Loaded(params, guard, incoming.fingerprint, _draft(config, ready, progress))
    sums = BlockSums() if model.recheck_weights_minutes else None
    params = load_params(
        ready.directory,
        ready.decoder,
        ready.lowering.mesh,
        ready.resolved.dtype,
        load_format=model.load_format,
        seed=model.seed,
        verify=model.verify_weights,
        sums=sums,
        packer=_packer(config, ready),
        progress=lambda done, total: progress("loading weights, MB", *_megabytes(done, total)),
    )
    guard = None if sums is None else WeightGuard(params, sums, model.recheck_weights_minutes)
    return _Loaded(params, guard, draft=_draft(config, ready, progress))


def _draft(config: EngineConfig, ready: Preparation, progress: CompileProgress) -> DraftWeights | None:
    if ready.draft is None:
        return None
    return load_draft(ready.draft, ready.lowering, seed=config.model.seed + 1, progress=progress)


def _packer(config: EngineConfig, ready: Preparation) -> Packer:
    return Packer(ready.decoder, ready.lowering.mesh, config.model.quantization, ready.lowering.options.stored)


def _live_model(config: EngineConfig, ready: Preparation) -> LiveModel:
    stored = ready.lowering.options.stored
    return LiveModel(ready.decoder, ready.lowering.mesh, ready.resolved.dtype, _packer(config, ready), stored)


def _live_draft(model: DraftModel, ready: Preparation) -> LiveModel:
    mesh = ready.lowering.mesh
    packer = Packer(model.config, mesh, model.quantization, model.stored)
    return LiveModel(model.config, mesh, ready.lowering.options.dtype, packer, model.stored)


def _megabytes(done: int, total: int) -> tuple[int, int]:
    whole = -(-total // 10**6)
    return (whole if done == total else done // 10**6), whole


def _grammars(config: EngineConfig, ready: Preparation) -> Grammars | None:
    """Of the model's tokenizer; None if it has none."""
    if ready.tokenizer is None:
        return None
    size, tokenizer = ready.decoder.vocab_size, ready.tokenizer
    path = config.model.tokenizer or model_directory(config.model.model)
    ends = _eos_token_ids(ready.decoder, tokenizer)
    read = partial(load_vocabulary, path, vocab_size=size, eos_token_ids=ends, tokenizer=tokenizer)
    return Grammars(size, read, WorkerSpec(str(path), size, tuple(ends)))


def _budgets(config: EngineConfig, policies: Policies, cache: KVCache) -> Budgets:
    default_class = ServiceClass(config.scheduler.default_class)
    return Budgets(
        policies,
        default_class,
        num_pages=cache.num_usable,
        page_size=cache.page_size,
        windows=cache.windows,
        max_chunk=config.scheduler.max_num_batched_tokens,
    )


def _quota(policies: Policies, num_pages: int, tenant: str) -> int | None:
    """Pages beyond which a tenant's cached ones go before others'."""
    share = policies.of_tenant(tenant).kv_share
    return None if share == 1.0 else int(share * num_pages)


def _report(config: EngineConfig, ready: Preparation, executor: LocalExecutor, fingerprint: str) -> EngineReport:
    devices, resolved, decoder = config.parallel.tensor_parallel_size, ready.resolved, ready.decoder
    return EngineReport(
        model=ModelInfo(
            name=resolved.served_model_names[0],
            aliases=resolved.served_model_names[1:],
            architecture=decoder.architecture,
            max_model_len=resolved.max_model_len,
            vocab_size=decoder.vocab_size,
            dtype=resolved.dtype,
            parameters=decoder.num_parameters,
            created=int(time.time()),
            tokenizer=str(Path(config.model.tokenizer or model_directory(config.model.model)).resolve()),
            sampling=ready.sampling,
            fingerprint=fingerprint,
            takes_adapters=config.lora.enable_lora,
            generates=ready.served.generates,
            pooler=ready.served.pooler,
        ),
        kv_dtype=resolved.kv_dtype,
        mesh=f"{executor.device_kind} x{devices}",
        page_size=config.cache.page_size,
        memory=MemoryLedger(
            weights=resolved.device_bytes.weights,
            kv_cache=resolved.cache_bytes,
            temporary=executor.temporary_bytes,
            kv_tokens=(resolved.num_pages - 1) // len(executor.capabilities().windows) * config.cache.page_size,
            adapters=resolved.device_bytes.adapters,
        ),
        scheduler=resolved.scheduler,
        buckets=tuple(f"{bucket.tokens}x{bucket.rows}" for bucket in executor.grid.buckets),
        start=NO_TIMES,
    )


def _eos_token_ids(decoder: DecoderConfig, tokenizer: Tokenizer | None) -> frozenset[int]:
    """The checkpoint's own list (generation_config.json before config.json), else the tokenizer's."""
    named = decoder.eos_token_ids
    if not named and tokenizer is not None and tokenizer.eos_token_id is not None:
        named = (tokenizer.eos_token_id,)
    ids = frozenset(token for token in named if 0 <= token < decoder.vocab_size)
    if len(ids) > SUPPRESS_WIDTH - MAX_STOP_TOKEN_IDS:
        limit = SUPPRESS_WIDTH - MAX_STOP_TOKEN_IDS
        raise UnsupportedModelError(f"eos_token_id: the checkpoint names {len(ids)} tokens, at most {limit} are supported")
    return ids


def crash_dumper(config: EngineConfig, model: str, fingerprint: str, limits: Capabilities) -> CrashDumper | None:
    """What keeps the last steps and writes them down; None if the configuration wants no dumps, or no directory can hold them."""
    if config.record.record_steps == 0:
        return None
    directory = dump_directory(config.record)
    if directory is None:
        return None
    parts = [getattr(config, item.name) for item in fields(config)]
    header = RecordHeader(
        jaxserve=version_of("jaxserve"),
        jax=jax.__version__,
        model=model,
        fingerprint=fingerprint,
        capabilities=limits,
        settings={item.name: getattr(part, item.name) for part in parts for item in fields(part)},
    )
    return CrashDumper(StepRing(config.record.record_steps), directory, header)
