"""What the planner knows by name: hardware and models, read from the TOML files beside this one."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from jaxserve.errors import ConfigError
from jaxserve.models.checkpoint import read_hf_config, read_json_object
from jaxserve.planner.hf import shape_from_hf
from jaxserve.planner.shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One GPU; hardware.toml says where the figures are from.

    Attributes:
        name: for people.
        hbm_gb: capacity as sold, "GB".
        hbm_mib: capacity as the driver reports it, MiB.
        bandwidth_gb_s: HBM bandwidth, GB/s.
        bf16_tflops, fp8_tflops: dense rates, TFLOP/s; fp8_tflops is None without FP8 units.
        nvlink_gb_s: NVLink bandwidth, both directions together, GB/s.
        margin_gb: memory kept free for page tables and fragmentation.
        price_per_hour: USD.
    """

    name: str
    hbm_gb: float
    hbm_mib: float
    bandwidth_gb_s: float
    bf16_tflops: float
    fp8_tflops: float | None = None
    nvlink_gb_s: float
    margin_gb: float
    price_per_hour: float


def model_names() -> tuple[str, ...]:
    """Names that `model` takes besides paths."""
    return tuple(_table("shapes.toml"))


def known_config(name: str) -> Mapping[str, Any] | None:
    """The fields of config.json that the planner has of a model it knows by name; None for another."""
    fields: Mapping[str, Any] | None = _table("shapes.toml").get(name)
    return fields


def hardware(name: str) -> Hardware:
    """A GPU by name. Raises ConfigError, listing the known ones, for another."""
    known = _table("hardware.toml")
    if name not in known:
        raise ConfigError(f"unknown hardware {name!r}; known are {', '.join(known)}", param="hardware")
    return Hardware(**known[name])


def model(name: str) -> ModelShape:
    """A model by name, or from a checkpoint directory or a config.json.

    Raises:
        ConfigError: neither a known name nor a path.
        CheckpointError: a config.json that cannot be read or planned with.
    """
    found = config_of(name)
    return shape_from_hf(found.hf, found.name, found.where)


class FoundConfig(NamedTuple):
    """A config.json: its fields, the model's name for people, and where it is from."""

    hf: Mapping[str, Any]
    name: str
    where: str


def config_of(name: str) -> FoundConfig:
    """The fields of a model's config.json, as `model` finds it, and with what it raises."""
    known, path = known_config(name), Path(name)
    if known is not None:
        return FoundConfig(known, name, name)
    if path.is_dir():
        return FoundConfig(read_hf_config(path), path.resolve().name, str(path / "config.json"))
    if path.is_file():
        return FoundConfig(read_json_object(path), path.resolve().parent.name, name)
    raise ConfigError(
        f"unknown model {name!r}: no checkpoint directory or config.json of that name; known are {', '.join(model_names())}",
        param="model",
    )


def _table(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads((files("jaxserve.planner") / name).read_text(encoding="utf-8"))
