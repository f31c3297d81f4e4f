"""Builds the engine of a checkpoint for other processes to use; the only module here that imports jax."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from jaxserve.chat_parsing.registry import Parsers
from jaxserve.clock import RealClock
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.banner import banner
from jaxserve.engine.build import build_engine
from jaxserve.engine.link import EngineDescription
from jaxserve.engine.preparation import model_directory
from jaxserve.engine.remote.builders import BuildProgress, ServedEngine
from jaxserve.engine.routed_experts import refuse_routed_experts
from jaxserve.errors import CheckpointError


def model_engine(argument: Mapping[str, Any], progress: BuildProgress) -> ServedEngine:
    """Build an engine from an EngineConfig as plain data. Raises what build_engine raises."""
    config = msgspec.convert(argument, EngineConfig)
    refuse_routed_experts(config)
    built = build_engine(config, strict_length=True, clock=RealClock(), progress=progress)
    if built.tokenizer is None:
        raise CheckpointError("a server needs a tokenizer: the checkpoint has none, give one with --tokenizer")
    tokenizer = Path(config.model.tokenizer) if config.model.tokenizer else model_directory(config.model.model)
    template = config.model.chat_template
    description = EngineDescription(
        model=built.report.model,
        rules=built.intake.rules,
        tokenizer=str(tokenizer.resolve()),
        chat_template=None if template is None else str(Path(template).resolve()),
        scheduler=config.scheduler,
        parsers=Parsers.of(config.model),
        parse_special_tokens=config.model.parse_special_tokens_in_content,
    )
    return ServedEngine(built.core, description, banner(built.report))
