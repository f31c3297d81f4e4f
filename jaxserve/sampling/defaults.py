"""SamplingDefaults: what a checkpoint recommends for requests that do not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from jaxserve.errors import CheckpointError, InvalidRequestError
from jaxserve.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """Values for what a request leaves out; None where the checkpoint has none either. Names are those of SamplingParams."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None

    def given(self) -> dict[str, Any]:
        """Those that the checkpoint has, as arguments of SamplingParams."""
        return {name: value for name, value in asdict(self).items() if value is not None}


NO_DEFAULTS = SamplingDefaults()


def defaults_from_hf(generation: Mapping[str, Any], where: str) -> tuple[SamplingDefaults, int | None]:
    """The recommendations in a parsed generation_config.json, and its `max_new_tokens`.

    Raises CheckpointError, naming `where`, for a value that no request may have either.
    """
    values = {name: generation[name] for name in asdict(NO_DEFAULTS) if generation.get(name) is not None}
    longest = generation.get("max_new_tokens")
    try:
        SamplingParams(**values, max_tokens=longest)
    except InvalidRequestError as error:
        message = error.message.replace("max_tokens", "max_new_tokens")
        raise CheckpointError(f"{where}: {message}; generation_config=none ignores that file", param="model") from error
    return SamplingDefaults(**values), longest
