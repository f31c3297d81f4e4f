"""The engine's crash dumps, as its configuration wants them."""

from __future__ import annotations

from dataclasses import fields
from importlib.metadata import version

import jax

from jaxserve.config.fields import EngineConfig
from jaxserve.config.resolve import dump_directory
from jaxserve.executor.base import Capabilities
from jaxserve.record.crash import CrashDumper
from jaxserve.record.recording import RecordHeader
from jaxserve.record.ring import StepRing


def crash_dumper(config: EngineConfig, model: str, fingerprint: str, limits: Capabilities) -> CrashDumper | None:
    """What keeps the last steps and writes them down; None if the configuration wants no dumps.

    Args:
        config: the engine's.
        model: the name clients ask for.
        fingerprint: from `model_fingerprint`.
        limits: of the executor.
    """
    if config.record.record_steps == 0:
        return None
    parts = [getattr(config, item.name) for item in fields(config)]
    header = RecordHeader(
        jaxserve=version("jaxserve"),
        jax=jax.__version__,
        model=model,
        fingerprint=fingerprint,
        capabilities=limits,
        settings={item.name: getattr(part, item.name) for part in parts for item in fields(part)},
    )
    return CrashDumper(StepRing(config.record.record_steps), dump_directory(config.record), header)
