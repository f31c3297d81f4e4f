"""An executor for the model of a recording."""

from __future__ import annotations

from jaxserve.clock import RealClock
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.build import build_engine
from jaxserve.engine.preparation import model_directory
from jaxserve.errors import ConfigError
from jaxserve.executor.base import Executor
from jaxserve.executor.programs import CompileProgress
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config
from jaxserve.record.rebuild import spare_spans
from jaxserve.record.recording import RecordHeader
from jaxserve.weights.fingerprint import model_fingerprint
from jaxserve.weights.stored_head import with_stored_head

_SETTINGS = (
    "dtype",
    "kv_cache_dtype",
    "quantization",
    "deterministic",
    "load_format",
    "seed",
    "tensor_parallel_size",
    "expert_parallel_size",
    "swap_space",
    "speculative_config",
)
_LIMITS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_pages", "page_size")


def recorded_model(model: str, header: RecordHeader, progress: CompileProgress) -> Executor:
    """An executor like the recorded one, on this machine's devices.

    Args:
        model: checkpoint directory, or "pico" for the bundled model.
        header: of the recording.
        progress: told about loading and compiling.

    Raises:
        ConfigError: the checkpoint is not the recorded one, or the devices cannot hold what theirs did.
        CheckpointError, UnsupportedModelError: the checkpoint cannot be loaded.
    """
    settings = {name: header.settings[name] for name in _SETTINGS if name in header.settings}
    recorded = header.capabilities
    limits = {name: getattr(recorded, name) for name in _LIMITS}
    limits["num_pages"] += sum(spare_spans(recorded, recorded.max_num_batched_tokens))
    config = EngineConfig.from_settings({**settings, **limits, "model": model, "record_steps": 0})
    directory = model_directory(model)
    decoder = with_stored_head(decoder_config(read_hf_config(directory)), directory, config.model.load_format)
    fingerprint = model_fingerprint(directory, decoder, config.model)
    if fingerprint != header.fingerprint:
        raise ConfigError(
            f"the recording is of {header.model} (fingerprint {header.fingerprint}), "
            f"{model} is another model (fingerprint {fingerprint})",
            param="model",
        )
    return build_engine(config, strict_length=True, clock=RealClock(), progress=progress).core.executor
