"""Builds an engine from its configuration: model, weights, cache, programs, tokenizer; and reports what it built."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path

from jax.sharding import Mesh

from jaxserve.cache.kv_cache import KVCache
from jaxserve.cache.prefix_hash import CacheNamespace
from jaxserve.clock import Clock
from jaxserve.config.fields import EngineConfig
from jaxserve.config.policies import Policies
from jaxserve.config.policies_file import load_policies
from jaxserve.config.resolve import ModelFacts, ResolvedConfig, resolve
from jaxserve.engine.budgets import Budgets
from jaxserve.engine.client import ModelInfo
from jaxserve.engine.core import EngineCore
from jaxserve.engine.dumps import crash_dumper
from jaxserve.engine.intake import Intake, IntakeLimits
from jaxserve.engine.startup import both
from jaxserve.engine.warm import Warmer, read_warm_prompts
from jaxserve.errors import ConfigError, UnsupportedModelError
from jaxserve.executor.compile_cache import keep_compiled_programs
from jaxserve.executor.local import LocalExecutor
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.memory import count_bytes, device_facts
from jaxserve.executor.options import ExecutorOptions, chosen_kernels
from jaxserve.executor.platform import choose_platform
from jaxserve.executor.programs import Progress, make_programs
from jaxserve.executor.saved_programs import SavedPrograms, read_manifest
from jaxserve.models.binding import Params
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.config import DecoderConfig
from jaxserve.models.registry import decoder_config
from jaxserve.sampling.params import MAX_STOP_TOKEN_IDS
from jaxserve.scheduler.plan import SUPPRESS_WIDTH
from jaxserve.scheduler.scheduler import Scheduler
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.tokenizer.chat import ChatTemplate
from jaxserve.tokenizer.load import load_tokenizer
from jaxserve.types import ServiceClass
from jaxserve.weights.fingerprint import model_fingerprint
from jaxserve.weights.load import load_params
from sharding.mesh import make_mesh

BUNDLED_MODEL = "pico"


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """Where the memory of one device goes, bytes, as its programs and shapes say. `temporary` is the largest step's workspace."""

    weights: int
    kv_cache: int
    temporary: int
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What was built, for people. Loading and compiling go on at the same time."""

    model: ModelInfo
    kv_dtype: str
    mesh: str
    page_size: int
    memory: MemoryLedger
    buckets: tuple[str, ...]
    load_seconds: float
    compile_seconds: float


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
    choose_platform(config.cache.gpu_memory_fraction)
    keep_compiled_programs(config.compile.compilation_cache_dir)
    directory = model_directory(config.model.model)
    policies = load_policies(config.scheduler.policies, config.scheduler.tenant_keys)
    warm_prompts = read_warm_prompts(config.cache)
    decoder = decoder_config(read_hf_config(directory))
    kernels = chosen_kernels(config, decoder.num_layers)
    tokenizer_path = Path(config.model.tokenizer) if config.model.tokenizer else directory
    tokenizer = _tokenizer(config, directory)
    mesh = _mesh(config.parallel.tensor_parallel_size)
    programs_directory = None if config.compile.programs is None else Path(config.compile.programs).expanduser()
    manifest = None if programs_directory is None else read_manifest(programs_directory)
    resolved = resolve(
        config,
        _model_facts(config, directory, decoder),
        device_facts(mesh.devices.flat[0], mesh.devices.size),
        partial(count_bytes, decoder, mesh, config),
        None if manifest is None else manifest.num_pages,
    )
    lowering = Lowering(decoder, mesh, ExecutorOptions.of(config, resolved, kernels))
    saved = None
    if programs_directory is not None and manifest is not None:
        saved = SavedPrograms(programs_directory, manifest, lowering)
    loaded, compiled = both(partial(_load, config, directory, lowering), partial(make_programs, lowering, saved=saved), progress)
    executor = LocalExecutor(lowering, compiled.result, loaded.result)
    cache = KVCache(
        resolved.num_pages,
        config.cache.page_size,
        prefix_caching=config.cache.prefix_caching,
        quota=partial(_quota, policies, resolved.num_pages - 1),
    )
    scheduler = Scheduler(config.scheduler, cache, resolved.max_model_len, clock, policies=policies)
    limits = IntakeLimits(
        max_model_len=resolved.max_model_len,
        vocab_size=decoder.vocab_size,
        eos_token_ids=_eos_token_ids(decoder, tokenizer),
        seed=config.model.seed,
        max_sequences=config.scheduler.max_waiting,
        strict=strict_length,
    )
    model = config.model
    fingerprint = model_fingerprint(directory, decoder, load_format=model.load_format, seed=model.seed)
    namespace = CacheNamespace(fingerprint, resolved.kv_dtype, repr(decoder.rope))
    dumper = crash_dumper(config, resolved.served_model_name, fingerprint, executor.capabilities())
    built = BuiltEngine(
        core=EngineCore(scheduler, executor, overlap=config.scheduler.overlap, dumper=dumper),
        intake=Intake(tokenizer, limits, namespace, _budgets(config, policies, cache)),
        tokenizer=tokenizer,
        chat_template=ChatTemplate.load(tokenizer_path, config.model.chat_template),
        report=_report(config, resolved, decoder, executor, (loaded.seconds, compiled.seconds)),
        clock=clock,
    )
    warmer = Warmer(built.core, built.intake, tokenizer, built.chat_template, clock, resolved.max_model_len)
    warmer.warm(warm_prompts, progress)
    return built


def _load(config: EngineConfig, directory: Path, lowering: Lowering, progress: Progress) -> Params:
    return load_params(
        directory,
        lowering.config,
        lowering.mesh,
        lowering.options.dtype,
        load_format=config.model.load_format,
        seed=config.model.seed,
        progress=lambda done, total: progress("loading weights", done, total),
    )


def _budgets(config: EngineConfig, policies: Policies, cache: KVCache) -> Budgets:
    default_class = ServiceClass(config.scheduler.default_class)
    return Budgets(policies, default_class, num_pages=cache.num_usable, page_size=cache.page_size)


def _quota(policies: Policies, num_pages: int, tenant: str) -> int | None:
    """Pages beyond which a tenant's cached ones go before others'."""
    share = policies.of_tenant(tenant).kv_share
    return None if share == 1.0 else int(share * num_pages)


def _report(
    config: EngineConfig,
    resolved: ResolvedConfig,
    decoder: DecoderConfig,
    executor: LocalExecutor,
    seconds: tuple[float, float],
) -> EngineReport:
    """What was built; `seconds` were spent on loading and on compiling."""
    devices = config.parallel.tensor_parallel_size
    return EngineReport(
        model=ModelInfo(
            name=resolved.served_model_name,
            architecture=decoder.architecture,
            max_model_len=resolved.max_model_len,
            vocab_size=decoder.vocab_size,
            dtype=resolved.dtype,
            parameters=decoder.num_parameters,
            created=int(time.time()),
            tokenizer=str(Path(config.model.tokenizer or model_directory(config.model.model)).resolve()),
        ),
        kv_dtype=resolved.kv_dtype,
        mesh=f"{executor.device_kind} x{devices}",
        page_size=config.cache.page_size,
        memory=MemoryLedger(
            weights=resolved.device_bytes.weights,
            kv_cache=resolved.cache_bytes,
            temporary=executor.temporary_bytes,
            kv_tokens=(resolved.num_pages - 1) * config.cache.page_size,
        ),
        buckets=tuple(f"{bucket.tokens}x{bucket.rows}" for bucket in executor.grid.buckets),
        load_seconds=seconds[0],
        compile_seconds=seconds[1],
    )


def model_directory(model: str) -> Path:
    """The checkpoint directory for a model argument. Raises ConfigError if there is none."""
    if model == BUNDLED_MODEL:
        return Path(str(files("jaxserve") / "assets" / BUNDLED_MODEL))
    path = Path(model)
    if not path.is_dir():
        raise ConfigError(f"model: no checkpoint directory at {model!r}", param="model")
    return path


def _tokenizer(config: EngineConfig, directory: Path) -> Tokenizer | None:
    """The tokenizer; None if the checkpoint has none and none was named: token ids in, token ids out."""
    if config.model.tokenizer:
        return load_tokenizer(config.model.tokenizer)
    if not any((directory / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        return None
    return load_tokenizer(directory)


def _mesh(tensor: int) -> Mesh:
    try:
        return make_mesh(tensor)
    except ValueError as error:
        raise ConfigError(f"tensor_parallel_size: {error}", param="tensor_parallel_size") from error


def _model_facts(config: EngineConfig, directory: Path, decoder: DecoderConfig) -> ModelFacts:
    name = config.model.model if config.model.model == BUNDLED_MODEL else directory.resolve().name
    return ModelFacts(
        name=name,
        dtype=decoder.dtype,
        max_position_embeddings=decoder.max_position_embeddings,
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
