"""Everything about a start that needs no weights: what the configuration comes to for this model on these devices."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from jaxserve.chat_parsing.registry import Parsers
from jaxserve.chat_parsing.template import ResponseTemplate
from jaxserve.config.fields import EngineConfig, ModelConfig, ParallelConfig
from jaxserve.config.policies import Policies
from jaxserve.config.policies_file import load_policies
from jaxserve.config.resolve import DeviceBytes, ModelFacts, ResolvedConfig, resolve
from jaxserve.config.windows import group_layers
from jaxserve.engine.draft import DraftTarget, PreparedDraft, prepare_draft, prepare_module
from jaxserve.engine.poolers import Served, served_of, with_separator
from jaxserve.engine.warm import WarmLine, read_warm_prompts
from jaxserve.errors import CheckpointError, ConfigError
from jaxserve.executor.autotune_results import make_results
from jaxserve.executor.compile_cache import keep_compiled_programs, kept_directory
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.memory import count_bytes, device_facts, draft_bytes
from jaxserve.executor.options import ExecutorOptions, chosen_kernels
from jaxserve.executor.platform import choose_platform
from jaxserve.executor.program_bundle import Manifest, ProgramBundle, read_manifest
from jaxserve.executor.program_cache import ProgramCache
from jaxserve.executor.programs import ProgramStore
from jaxserve.jax_settings import engine_settings, refusal
from jaxserve.models.checkpoint import read_hf_config, read_json_object
from jaxserve.models.config import DecoderConfig
from jaxserve.models.registry import decoder_config
from jaxserve.models.sentence_transformers import read_sentence_transformer, transformer_folder, with_modules
from jaxserve.models.shards import expert_groups
from jaxserve.sampling.defaults import NO_DEFAULTS, SamplingDefaults, defaults_from_hf
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.tokenizer.chat import ChatTemplate
from jaxserve.tokenizer.control_tokens import ControlTokens
from jaxserve.tokenizer.load import load_tokenizer
from jaxserve.tokenizer.responses import load_response_template
from jaxserve.weights.manifest import check_prompt_files, check_tokenizer
from jaxserve.weights.quality import check_quality
from jaxserve.weights.stored_head import with_stored_head
from jaxserve.weights.stored_schemes import stored_schemes
from pallas_kernels.registry import Target
from sharding.mesh import make_mesh

logger = logging.getLogger(__name__)

BUNDLED_MODEL = "pico"


@dataclass(frozen=True, slots=True)
class Preparation:
    """What an engine is built from.

    Attributes:
        directory: of the checkpoint.
        decoder: the model.
        tokenizer: None if the checkpoint has none and none was named: token ids in, token ids out.
        chat_template: None if there is none.
        responses: how to read the model's responses; None where that is not known.
        sampling, default_max_tokens: what requests that do not say get.
        policies: of classes and tenants.
        warm_prompts: what the prefix cache is to hold from the start.
        resolved: values for everything that was "auto".
        lowering: programs and weights from their shapes.
        saved: where programs are had that need not be compiled: a directory that was named, or what earlier starts kept.
        draft: what guesses for the model on its devices, if anything does.
        served: what requests may ask for.
    """

    directory: Path
    decoder: DecoderConfig
    tokenizer: Tokenizer | None
    chat_template: ChatTemplate | None
    responses: ResponseTemplate | None
    sampling: SamplingDefaults
    default_max_tokens: int | None
    policies: Policies
    warm_prompts: Sequence[WarmLine]
    resolved: ResolvedConfig
    lowering: Lowering
    saved: ProgramStore | None
    draft: PreparedDraft | None
    served: Served


@engine_settings()
def prepare(config: EngineConfig) -> Preparation:
    """Read all files but the weights, choose devices and sizes. Raises CheckpointError, UnsupportedModelError or ConfigError."""
    _require_jax(config)
    keep_compiled_programs(config.compile.compilation_cache_dir)
    directory = model_directory(config.model.model)
    policies = load_policies(config.scheduler.policies, config.scheduler.tenant_keys)
    warm_prompts = read_warm_prompts(config.cache)
    hf = read_hf_config(directory) | config.model.parse_hf_overrides()
    decoder, sentences = decoder_config(hf), read_sentence_transformer(directory)
    _warn_of_code(hf)
    decoder = decoder if sentences is None else with_modules(decoder, sentences)
    kernels = chosen_kernels(config, decoder.num_layers)
    tokenizer_path = Path(config.model.tokenizer) if config.model.tokenizer else directory
    check_tokenizer(directory, tokenizer_path)
    if config.model.require_quality is not None:
        check_quality(directory, config.model.require_quality, config.model.quantization)
    if config.model.verify_weights:
        check_prompt_files(directory, tokenizer_path)
    decoder = with_stored_head(decoder, directory, config.model.load_format)
    tokenizer = _tokenizer(config, directory, decoder)
    decoder = with_separator(decoder, tokenizer)
    served = served_of(config.model, hf, sentences, decoder, tokenizer)
    control_tokens = None
    if tokenizer is not None and not config.model.parse_special_tokens_in_content:
        control_tokens = ControlTokens.of(tokenizer)
    chat_template = ChatTemplate.load(tokenizer_path, config.model.chat_template, control_tokens=control_tokens)
    sampling, default_max_tokens = generation_defaults(config.model, directory)
    mesh = _mesh(config.parallel, decoder)
    stored = stored_schemes(directory, decoder, config.model.load_format)
    programs_directory = None if config.compile.programs is None else Path(config.compile.programs)
    manifest = None if programs_directory is None else read_manifest(programs_directory)
    draft = _draft(config, DraftTarget(directory, decoder, tokenizer), mesh)

    def held(dtype: str, kv_dtype: str) -> DeviceBytes:
        target = count_bytes(decoder, mesh, config, dtype, kv_dtype, stored)
        return target if draft is None else target + draft_bytes(draft.model, mesh, config.cache.page_size, dtype, kv_dtype)

    resolved = resolve(
        config,
        _model_facts(config, decoder),
        device_facts(mesh.devices.flat[0], mesh.devices.size),
        held,
        None if manifest is None else manifest.num_pages,
    )
    decoder, draft = decoder.serving(resolved.max_model_len), draft and draft.serving(resolved.max_model_len)
    options = ExecutorOptions.of(config, resolved, kernels, stored)
    make_results(options.autotune_results)
    readers = served.readers
    lowering = Lowering(decoder, mesh, options, readers=readers, draft=None if draft is None else draft.model)
    return Preparation(
        directory=directory,
        decoder=decoder,
        tokenizer=tokenizer,
        chat_template=chat_template,
        responses=None
        if tokenizer is None
        else load_response_template(tokenizer_path, tokenizer, chat_template, Parsers.of(config.model)),
        sampling=sampling,
        default_max_tokens=default_max_tokens,
        policies=policies,
        warm_prompts=warm_prompts,
        resolved=resolved,
        lowering=lowering,
        saved=_program_store(programs_directory, manifest, lowering),
        draft=draft,
        served=served,
    )


def _warn_of_code(hf: Mapping[str, Any]) -> None:
    """A checkpoint may come with code of its own, which may look to both sides or pool otherwise: that code is not run."""
    given = hf.get("auto_map")
    models = {name: code for name, code in given.items() if name.startswith("AutoModel")} if isinstance(given, dict) else {}
    if models:
        named = ", ".join(f"{name} {code!r:.80}" for name, code in models.items())
        logger.warning(
            "config.json: auto_map names code of the checkpoint (%s), which is not run: where it computes something else than "
            "transformers' %s, results differ",
            named,
            hf["architectures"][0],
        )


def _require_jax(config: EngineConfig) -> None:
    """Start jax's devices. Raises ConfigError for settings of jax that the engine cannot run under."""
    if (refused := refusal()) is not None:
        raise ConfigError(refused)
    choose_platform(config.cache.gpu_memory_fraction)
    try:
        jax.devices()
    except RuntimeError as error:
        raise ConfigError(f"jax cannot start its devices (jax_platforms={jax.config.jax_platforms}): {error}") from error


def _draft(config: EngineConfig, target: DraftTarget, mesh: Mesh) -> PreparedDraft | None:
    asked = config.speculation.parse()
    if asked is None or not asked.runs_model:
        return None
    prepared = prepare_module if asked.method == "mtp" else prepare_draft
    directory = Path(asked.model) if asked.model else target.directory
    found = prepared(directory, asked.num_speculative_tokens, target, mesh, config.model.load_format)
    if asked.method == "eagle3" and found.model.config.fed is None:
        raise ConfigError(
            f"speculative_config: model: {asked.model} is a model of its own, not an EAGLE-3 head", param="speculative_config"
        )
    return found


def _program_store(named: Path | None, manifest: Manifest | None, lowering: Lowering) -> ProgramStore | None:
    if named is not None:
        return None if manifest is None else ProgramBundle(named, manifest, lowering)
    kept = kept_directory()
    return None if kept is None else ProgramCache(kept, lowering)


def model_directory(model: str) -> Path:
    """The checkpoint directory for a model argument. Raises ConfigError if there is none."""
    if model == BUNDLED_MODEL:
        return Path(str(files("jaxserve") / "assets" / BUNDLED_MODEL))
    path = Path(model)
    if not path.is_dir():
        raise ConfigError(f"model: no checkpoint directory at {model!r}", param="model")
    return transformer_folder(path)


def _tokenizer(config: EngineConfig, directory: Path, decoder: DecoderConfig) -> Tokenizer | None:
    if config.model.tokenizer:
        tokenizer = load_tokenizer(config.model.tokenizer)
    elif any((directory / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        tokenizer = load_tokenizer(directory)
    else:
        return None
    check_vocabulary(tokenizer, decoder.vocab_size)
    return tokenizer


def check_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raise CheckpointError if text may become a token that a model of `vocab_size` embeddings does not have.

    Special tokens beyond them are let pass, for text models keep those of their siblings that see images (Gemma 3): a
    prompt that spells one out is refused when it comes.
    """
    special = tokenizer.special_token_ids
    beyond = [i for i in range(vocab_size, tokenizer.vocab_size) if i not in special and tokenizer.token_bytes(i)]
    if beyond:
        raise CheckpointError(
            f"the tokenizer has ids up to {tokenizer.vocab_size - 1}, {len(beyond)} of them for text beyond the model's "
            f"{vocab_size} embeddings: it belongs to another model",
            param="tokenizer",
        )


def _mesh(parallel: ParallelConfig, decoder: DecoderConfig) -> Mesh:
    size, groups = parallel.tensor_parallel_size, parallel.expert_parallel_size
    if groups is None:
        groups = expert_groups(decoder, size, Target.of(jax.devices()[0]))
    try:
        return make_mesh(size // groups, expert=groups)
    except ValueError as error:
        raise ConfigError(f"tensor_parallel_size: {error}", param="tensor_parallel_size") from error


def _model_facts(config: EngineConfig, decoder: DecoderConfig) -> ModelFacts:
    name = config.model.model if config.model.model == BUNDLED_MODEL else Path(config.model.model).resolve().name
    return ModelFacts(
        name=name,
        dtype=decoder.dtype,
        max_position_embeddings=decoder.max_position_embeddings,
        windows=group_layers(decoder.cache_windows).windows,
        bidirectional=decoder.bidirectional,
        recurrent=decoder.recurrent is not None,
        chunk=max(filter(None, decoder.windows), default=None) if decoder.chunked else None,
    )


def generation_defaults(config: ModelConfig, directory: Path) -> tuple[SamplingDefaults, int | None]:
    """The checkpoint's sampling defaults, and how many tokens it generates where nobody says; none if not wanted.

    Raises CheckpointError for a damaged file or a value that no request may have.
    """
    path = directory / "generation_config.json"
    if config.generation_config == "none" or not path.is_file():
        return NO_DEFAULTS, None
    return defaults_from_hf(read_json_object(path), str(path))
