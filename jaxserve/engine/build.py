"""Builds an engine from its configuration: model, weights, cache, programs, tokenizer; and reports what it built."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.prefix_hash import CacheNamespace
from jaxserve.clock import Clock
from jaxserve.config.fields import EngineConfig, SchedulerConfig
from jaxserve.config.policies import Policies
from jaxserve.config.resolve import ResolvedConfig
from jaxserve.engine.budgets import Budgets
from jaxserve.engine.client import ModelInfo
from jaxserve.engine.core import EngineCore
from jaxserve.engine.dumps import crash_dumper
from jaxserve.engine.intake import Intake, IntakeLimits
from jaxserve.engine.phases import NO_TIMES, PhaseTimer, StartTimes
from jaxserve.engine.preparation import Preparation, model_directory, prepare
from jaxserve.engine.startup import both
from jaxserve.engine.warm import Warmer
from jaxserve.errors import UnsupportedModelError
from jaxserve.executor.local import LocalExecutor
from jaxserve.executor.programs import Progress, make_programs
from jaxserve.models.binding import Params
from jaxserve.models.config import DecoderConfig
from jaxserve.sampling.defaults import SamplingDefaults
from jaxserve.sampling.options import SUPPRESS_WIDTH
from jaxserve.sampling.params import MAX_STOP_TOKEN_IDS
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.tokenizer.chat import ChatTemplate
from jaxserve.types import ServiceClass
from jaxserve.weights.fingerprint import model_fingerprint
from jaxserve.weights.load import load_params
from jaxserve.weights.packed import Packer
from jaxserve.weights.recheck import BlockSums, WeightGuard


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """Where the memory of one device goes, bytes, as its programs and shapes say. `temporary` is the largest step's workspace."""

    weights: int
    kv_cache: int
    temporary: int
    kv_tokens: int


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
    """The parts that a client puts together."""

    core: EngineCore
    intake: Intake
    tokenizer: Tokenizer | None
    chat_template: ChatTemplate | None
    report: EngineReport
    clock: Clock


def build_engine(config: EngineConfig, *, strict_length: bool, clock: Clock, progress: Progress) -> BuiltEngine:
    """Load and compile everything. Raises CheckpointError, UnsupportedModelError or ConfigError.

    Args:
        config: the configuration.
        strict_length: whether a request for more output than the context holds is refused, not cut short.
        clock: time for requests.
        progress: told about loading and compiling.
    """
    times = PhaseTimer()
    ready = prepare(config)
    times.ended("files")
    loaded, compiled = both(partial(_load, config, ready), partial(make_programs, ready.lowering, saved=ready.saved), progress)
    times.ended("building")
    params, guard = loaded.result
    executor = LocalExecutor(ready.lowering, compiled.result, params, guard)
    resolved, decoder, tokenizer = ready.resolved, ready.decoder, ready.tokenizer
    cache = KVCache(
        resolved.num_pages,
        config.cache.page_size,
        prefix_caching=config.cache.prefix_caching,
        quota=partial(_quota, ready.policies, resolved.num_pages - 1),
        windows=executor.capabilities().windows,
        max_chunk=config.scheduler.max_num_batched_tokens,
    )
    longest, sizes = resolved.max_model_len, executor.grid.step_sizes
    scheduler = Scheduler(resolved.scheduler, cache, longest, clock, policies=ready.policies, step_sizes=sizes)
    fingerprint = model_fingerprint(ready.directory, decoder, config.model)
    namespace = CacheNamespace(fingerprint, resolved.kv_dtype, repr(decoder.ropes))
    dumper = crash_dumper(config, resolved.served_model_names[0], fingerprint, executor.capabilities())
    built = BuiltEngine(
        core=EngineCore(scheduler, executor, overlap=config.scheduler.overlap, dumper=dumper),
        intake=Intake(tokenizer, _limits(config, ready, strict_length), namespace, _budgets(config, ready.policies, cache)),
        tokenizer=tokenizer,
        chat_template=ready.chat_template,
        report=_report(config, resolved, decoder, executor, ready.sampling, fingerprint, NO_TIMES),
        clock=clock,
    )
    if guard is not None:
        built.core.intact = guard.require_intact
        guard.start()
    warmer = Warmer(built.core, built.intake, tokenizer, built.chat_template, clock, longest)
    times.ended("rest")
    warmer.warm(ready.warm_prompts, progress)
    times.ended("warm")
    return replace(built, report=replace(built.report, start=times.start(loaded.seconds, compiled.seconds)))


def _limits(config: EngineConfig, ready: Preparation, strict: bool) -> IntakeLimits:
    """What requests may ask for."""
    return IntakeLimits(
        max_model_len=ready.resolved.max_model_len,
        vocab_size=ready.decoder.vocab_size,
        eos_token_ids=_eos_token_ids(ready.decoder, ready.tokenizer),
        seed=config.model.seed,
        max_sequences=config.scheduler.max_waiting,
        max_logprob_values=config.scheduler.max_logprob_values,
        strict=strict,
        default_max_tokens=ready.default_max_tokens,
    )


def _load(config: EngineConfig, ready: Preparation, progress: Progress) -> tuple[Params, WeightGuard | None]:
    """The weights, and who guards them, if anybody does."""
    model = config.model
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
        packer=Packer(ready.decoder, ready.lowering.mesh, model.quantization),
        progress=lambda done, total: progress("loading weights, MB", *_megabytes(done, total)),
    )
    return params, None if sums is None else WeightGuard(params, sums, model.recheck_weights_minutes)


def _megabytes(done: int, total: int) -> tuple[int, int]:
    """Bytes as megabytes; all are done only with the last byte."""
    whole = -(-total // 10**6)
    return (whole if done == total else done // 10**6), whole


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


def _report(
    config: EngineConfig,
    resolved: ResolvedConfig,
    decoder: DecoderConfig,
    executor: LocalExecutor,
    sampling: SamplingDefaults,
    fingerprint: str,
    start: StartTimes,
) -> EngineReport:
    """What was built, and how long that took."""
    devices = config.parallel.tensor_parallel_size
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
            sampling=sampling,
            fingerprint=fingerprint,
        ),
        kv_dtype=resolved.kv_dtype,
        mesh=f"{executor.device_kind} x{devices}",
        page_size=config.cache.page_size,
        memory=MemoryLedger(
            weights=resolved.device_bytes.weights,
            kv_cache=resolved.cache_bytes,
            temporary=executor.temporary_bytes,
            kv_tokens=(resolved.num_pages - 1) // len(executor.capabilities().windows) * config.cache.page_size,
        ),
        scheduler=resolved.scheduler,
        buckets=tuple(f"{bucket.tokens}x{bucket.rows}" for bucket in executor.grid.buckets),
        start=start,
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
