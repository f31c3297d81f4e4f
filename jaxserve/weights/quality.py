"""Refuses quantized checkpoints that lost more than somebody allows, or of which nobody knows what they lost."""

from __future__ import annotations

from pathlib import Path

from jaxserve.errors import CheckpointError, ConfigError
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.quantization import quantization_from_hf
from jaxserve.models.quantization_methods import CacheAlone
from jaxserve.weights.manifest import MANIFEST, read_manifest

_PARAM = "require_quality"


def check_quality(directory: Path, percent: float, quantization: str) -> None:
    """Check that a model has not lost more perplexity than allowed, as its manifest says.

    One whose weights are not quantized has not, whatever scales it has for a KV cache.

    Args:
        directory: of the model.
        percent: by which perplexity may have risen.
        quantization: what the engine rounds matrices to while it loads them: what that costs, no manifest says.

    Raises:
        CheckpointError: it has, or nobody measured it.
        ConfigError: it is rounded once more.
    """
    if quantization != "none":
        raise ConfigError(
            f"{_PARAM} {percent:g}: quantization {quantization!r} rounds weights while they are loaded, and what that costs was "
            "not measured; serve what `python -m jaxserve.quantize MODEL OUTPUT --scheme SCHEME --calibration FILE` writes",
            param=_PARAM,
        )
    if quantization_from_hf(read_hf_config(directory)) in (None, CacheAlone()):
        return
    manifest = read_manifest(directory)
    quality = None if manifest is None else manifest.quality
    if quality is None:
        raise CheckpointError(
            f"{_PARAM} {percent:g}: {directory} is quantized, and has no {MANIFEST} that says what it lost; "
            "`python -m jaxserve.quantize MODEL OUTPUT --scheme SCHEME --calibration FILE` makes one of the original with it",
            param=_PARAM,
        )
    if not quality.increase_percent <= percent:
        raise CheckpointError(
            f"{_PARAM} {percent:g}: {directory} has {quality.increase_percent:.3g} % more perplexity than the original; "
            f"`python -m jaxserve.quantize MODEL OUTPUT --scheme {quality.scheme} --calibration FILE --audit "
            f"--budget {percent:g}` chooses what to keep so that it loses less",
            param=_PARAM,
        )
