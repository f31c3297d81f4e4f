"""An engine in this process that answers the lines of jobs; set up for throughput, since nobody waits for a first token."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax

from jaxserve.config.fields import EngineConfig, ModelConfig
from jaxserve.engine.local import LocalEngine
from jaxserve.engine.preparation import BUNDLED_MODEL, generation_defaults, model_directory
from jaxserve.errors import ConfigError
from jaxserve.executor.platform import choose_platform
from jaxserve.executor.programs import CompileProgress, silent
from jaxserve.heap import freeze_gc
from jaxserve.jobs.storage import JobModel
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config
from jaxserve.weights.fingerprint import model_fingerprint
from jaxserve.weights.stored_head import with_stored_head
from server.http.bodies import BodyAnswerer

CHOSEN = ("max_num_seqs", "max_num_batched_tokens", "max_waiting")
"""Settings of the engine that are chosen here where they are None."""

# Rows and tokens of a step. More of either make a step longer, not the work shorter, from where the device is busy; and every
# doubling is more programs to compile, which on a CPU soon takes longer than it saves.
_CPU_STEP = (64, 512)
_GPU_STEP = (256, 4096)  # not measured yet

_SPARE = 4  # a quarter more than runs is asked for, so that the engine never waits for a request to be prepared
_LEAST_SPARE = 8
_TEXT_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
)


class LocalAnswerer(BodyAnswerer):
    """Answers by an engine in this process; belongs to the event loop it was started in."""

    def __init__(self, engine: LocalEngine) -> None:
        super().__init__(engine)
        self.engine = engine

    @classmethod
    @asynccontextmanager
    async def start(cls, config: EngineConfig, progress: CompileProgress) -> AsyncIterator[LocalAnswerer]:
        """Build an engine and start it; at the end it stops, whatever still runs. Raises what LocalEngine.start raises."""
        engine = await LocalEngine.start(config, progress)
        freeze_gc()
        try:
            yield cls(engine)
        finally:
            await engine.drain(0.0)


def throughput_config(settings: Mapping[str, Any], *, on_cpu: bool | None = None) -> EngineConfig:
    """The engine for a job: every setting as it is given, and those of CHOSEN that are None as its device does most with.

    `on_cpu` says whether that is a CPU; None where it is this process's device.

    Raises ConfigError.
    """
    if on_cpu is None:
        choose_platform(settings["gpu_memory_fraction"])
        on_cpu = jax.default_backend() == "cpu"
    rows, tokens = _CPU_STEP if on_cpu else _GPU_STEP
    given = {name: value for name, value in settings.items() if value is not None or name not in CHOSEN}
    rows = given.setdefault("max_num_seqs", min(rows, given.get("max_num_batched_tokens", rows)))
    given.setdefault("max_num_batched_tokens", max(tokens, rows))
    given.setdefault("max_waiting", max(1024, 2 * rows))
    return EngineConfig.from_settings(given)


def remote_engine(config: EngineConfig) -> Callable[[], AbstractAsyncContextManager[LocalAnswerer]]:
    """What starts an engine in a process elsewhere: it can be pickled, and nobody is told how far the start is."""
    return partial(LocalAnswerer.start, config, silent)


def sequences_in_flight(config: EngineConfig) -> int:
    """How many sequences to ask an engine for at once: its steps are always full, and its queue never is."""
    rows = config.scheduler.max_num_seqs
    return min(rows + max(rows // _SPARE, _LEAST_SPARE), config.scheduler.max_waiting)


def job_model(config: ModelConfig) -> JobModel:
    """What must stay the same while a job is resumed: weights, dtype, tokenizer, chat template and sampling defaults.

    Raises CheckpointError, UnsupportedModelError or ConfigError.
    """
    directory = model_directory(config.model)
    decoder = with_stored_head(decoder_config(read_hf_config(directory)), directory, config.load_format)
    numbers = model_fingerprint(directory, decoder, config)
    sampling = generation_defaults(config, directory)
    digest = hashlib.blake2b(f"{numbers} {config.dtype} {sampling}".encode(), digest_size=8)
    for name, content in _texts(config, directory).items():
        digest.update(f" {name} {len(content)} ".encode() + content)
    own_name = BUNDLED_MODEL if config.model == BUNDLED_MODEL else Path(config.model).resolve().name
    return JobModel((*config.served_model_name, own_name)[0], digest.hexdigest())


def _texts(config: ModelConfig, directory: Path) -> Mapping[str, bytes]:
    place = Path(config.tokenizer) if config.tokenizer else directory
    paths = {name: place / name for name in _TEXT_FILES} if place.is_dir() else {"tokenizer": place}
    if config.chat_template is not None:
        paths["template"] = Path(config.chat_template)
    try:
        return MappingProxyType({name: path.read_bytes() for name, path in paths.items() if path.is_file()})
    except OSError as error:
        raise ConfigError(f"cannot read {error.filename}: {error.strerror}") from error
