"""Adapters (LoRA): how many there is room for, and which are known from the start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxserve.config.check import check_types, require_at_least, take_several
from jaxserve.config.home import expand_paths
from jaxserve.errors import ConfigError

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""That slots are made for, as vLLM's are."""


def _setting(default: Any, help: str) -> Any:
    """As `fields.setting`, which imports this."""
    return field(default=default, metadata={"help": help})


class LoraShape(NamedTuple):
    """How many adapters are on the devices at a time, S, their rank, R, and whether they may change routed experts."""

    slots: int
    rank: int
    experts: bool = False


class LoraModule(NamedTuple):
    """An adapter that is known from the start: its name, where it lies, its base model as it says, and whether it is pinned."""

    name: str
    path: str
    base_model_name: str | None = None
    pin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Adapters (LoRA) over the served model; with vLLM's names."""

    enable_lora: bool = _setting(False, "serve adapters: requests name one as their model")
    max_loras: int = _setting(8, "adapters on the devices at a time: requests of others wait for a place")
    max_lora_rank: int = _setting(16, "largest rank of an adapter; memory is taken for it whatever theirs are")
    lora_experts: bool = _setting(False, "adapters may change routed experts, too; memory is taken for all of these")
    max_cpu_loras: int = _setting(64, "adapters kept in the host's memory, at least as many as on the devices")
    lora_modules: tuple[str, ...] = _setting(
        (), 'adapters that are there from the start: NAME=DIRECTORY, or JSON {"name", "path", "base_model_name", "pin"}'
    )
    lora_dir: str | None = _setting(
        None, "directory of adapters' directories, which is watched: each is an adapter of its name, for as long as it is there"
    )

    def __post_init__(self) -> None:
        take_several(self, "lora_modules")
        check_types(self)
        expand_paths(self, "lora_dir")
        require_at_least("max_loras", self.max_loras, 1)
        require_at_least("max_cpu_loras", self.max_cpu_loras, self.max_loras)
        if not 1 <= self.max_lora_rank <= RANKS[-1]:
            raise ConfigError(f"max_lora_rank must be between 1 and {RANKS[-1]}, got {self.max_lora_rank}", param="max_lora_rank")
        if self.lora_modules and not self.enable_lora:
            raise ConfigError("lora_modules needs enable_lora", param="lora_modules")
        if self.lora_dir is not None and not self.enable_lora:
            raise ConfigError("lora_dir needs enable_lora", param="lora_dir")
        if self.lora_experts and not self.enable_lora:
            raise ConfigError("lora_experts needs enable_lora", param="lora_experts")
        names = [module.name for module in self.modules()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"lora_modules: {twice[0]!r} is named twice", param="lora_modules")

    @property
    def shape(self) -> LoraShape | None:
        """Of the slots; None without adapters. The rank is rounded up to one of RANKS."""
        if not self.enable_lora:
            return None
        rank = next(rank for rank in RANKS if rank >= self.max_lora_rank)
        return LoraShape(self.max_loras, rank, self.lora_experts)

    def modules(self) -> tuple[LoraModule, ...]:
        return tuple(_module(text) for text in self.lora_modules)


def _module(text: str) -> LoraModule:
    if not text.lstrip().startswith("{"):
        name, separator, path = text.partition("=")
        if not (name and separator and path):
            raise _wrong(f"{text!r} is neither NAME=DIRECTORY nor a JSON object")
        return LoraModule(name, path)
    try:
        given: Any = json.loads(text)
    except ValueError as error:
        raise _wrong(f"{text!r} is not JSON: {error}") from error
    return _of_object(given)


def _of_object(given: Mapping[str, Any]) -> LoraModule:
    odd = sorted(set(given) - {"name", "path", "base_model_name", "pin"})
    if odd:
        raise _wrong(f"{odd[0]!r} is unknown; known are name, path, base_model_name and pin")
    values = [given.get(field) for field in ("name", "path")]
    if not all(isinstance(value, str) and value for value in values):
        raise _wrong("name and path must be given, as strings")
    pin = given.get("pin", False)
    if not isinstance(pin, bool):
        raise _wrong(f"pin must be true or false, got {pin!r}")
    return LoraModule(str(values[0]), str(values[1]), given.get("base_model_name"), pin)


def _wrong(why: str) -> ConfigError:
    return ConfigError(f"lora_modules: {why}", param="lora_modules")
