"""A fleet's YAML file: settings of `jaxserve.serve` under their names; `pools`, `routing`, `ingress` and `ray` beside them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar, get_type_hints

from jaxserve.config.fields import EngineConfig, ModelConfig
from jaxserve.config.file import read_settings
from jaxserve.config.flags import flag_names
from jaxserve.config.fleet import FleetConfig, IngressConfig, PoolConfig, RoutingConfig
from jaxserve.config.pool_scaling import PoolScaling
from jaxserve.config.server import ServerConfig
from jaxserve.config.start import api_key_hashes
from jaxserve.errors import ConfigError
from jaxserve.types import ServiceClass

_Part = TypeVar("_Part", RoutingConfig, IngressConfig)

_POOL = ("replicas", "cpus", "gpus", "weight", "classes", "min_tokens", "max_tokens", "engine")
_MODEL = ("model", "served_model_name")  # may stand in a pool itself

# What goes with one model: a pool with another does not take it from the file's settings, but has its own or the default.
_OF_ITS_MODEL = (
    "served_model_name",
    "tokenizer",
    "chat_template",
    "parse_special_tokens_in_content",
    "tool_call_parser",
    "reasoning_parser",
    "response_template",
    "warm_prompts",
    "programs",
    "autotune_results",
)


def read_fleet(path: str) -> FleetConfig:
    """The fleet that a file describes. Raises ConfigError, which names the file and the setting."""
    engine_names = [name for part in get_type_hints(EngineConfig).values() for name in flag_names(part)]
    server_names = flag_names(ServerConfig)
    settings = read_settings(path, [*engine_names, *server_names, "pools", "routing", "ingress", "ray"])
    try:
        shared = {name: settings[name] for name in engine_names if name in settings}
        server = ServerConfig(
            **{name: settings[name] for name in server_names if name in settings}, api_key_hashes=api_key_hashes(())
        )
        pools = _mapping("pools", settings.get("pools") or {"default": {}})
        return FleetConfig(
            pools=tuple(
                _pool(str(name), _mapping(f"pool {name!r}", given or {}), shared, server) for name, given in pools.items()
            ),
            server=server,
            routing=_of(RoutingConfig, "routing", settings.get("routing") or {}),
            ingress=_of(IngressConfig, "ingress", settings.get("ingress") or {}),
            address=_address(settings.get("ray")),
        )
    except ConfigError as error:
        raise ConfigError(f"config: {path}: {error.message}", param=error.param) from error


def _pool(name: str, given: Mapping[str, Any], shared: Mapping[str, Any], server: ServerConfig) -> PoolConfig:
    given = {key.replace("-", "_"): value for key, value in given.items()}
    _known(f"pool {name!r}", given, (*_POOL, *_MODEL))
    engine = {
        key.replace("-", "_"): value for key, value in _mapping(f"engine of pool {name!r}", given.get("engine") or {}).items()
    }
    engine |= {key: given[key] for key in _MODEL if key in given}
    shared = _without_others_model(shared, engine)
    values = {key: given[key] for key in ("weight", "min_tokens", "max_tokens") if key in given}
    for key, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"pool {name!r}: {key} must be a number, got {value!r}", param="pools")
    built = EngineConfig.from_settings({**shared, **engine, "tenant_keys": server.keys})
    replicas, scaling = _replicas(name, given.get("replicas", 1))
    return PoolConfig(
        name=name,
        engine=built,
        replicas=replicas,
        scaling=scaling,
        cpus=_number(name, "cpus", given.get("cpus", 1)),
        gpus=_number(name, "gpus", given.get("gpus", 0)),
        classes=_classes(name, given.get("classes")),
        **values,
    )


def _replicas(pool: str, given: Any) -> tuple[int, PoolScaling | None]:
    """How many there are at most, and how they scale if they do."""
    if isinstance(given, Mapping):
        try:
            scaling = PoolScaling.of(_mapping("replicas", given))
        except ConfigError as error:
            raise ConfigError(f"pool {pool!r}: replicas: {error.message}", param="pools") from error
        return scaling.settings.max_replicas, scaling
    if isinstance(given, bool) or not isinstance(given, int):
        reason = f"replicas must be an integer, or min, max and how they scale between them, got {given!r}"
        raise ConfigError(f"pool {pool!r}: {reason}", param="pools")
    return given, None


def _without_others_model(shared: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """The file's settings as a pool takes them that has settings of its own."""
    if "model" not in own or own["model"] == shared.get("model", ModelConfig().model):
        return shared
    return {name: value for name, value in shared.items() if name not in _OF_ITS_MODEL}


def _classes(pool: str, given: Any) -> tuple[ServiceClass, ...]:
    if given is None:
        return tuple(ServiceClass)
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(name in tuple(ServiceClass) for name in names):
        known = ", ".join(ServiceClass)
        raise ConfigError(f"classes of pool {pool!r} must be of {known}, got {given!r}", param="pools")
    return tuple(ServiceClass(name) for name in names)


def _number(pool: str, name: str, given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise ConfigError(f"pool {pool!r}: {name} must be a number, got {given!r}", param="pools")
    return float(given)


def _of(kind: type[_Part], name: str, given: Any) -> _Part:
    settings = {key.replace("-", "_"): value for key, value in _mapping(name, given).items()}
    _known(name, settings, [item.name for item in fields(kind)])
    return replace(kind(), **settings)


def _address(given: Any) -> str | None:
    settings = _mapping("ray", given or {})
    _known("ray", settings, ("address",))
    address = settings.get("address")
    if address is not None and not isinstance(address, str):
        raise ConfigError(f"ray: address must be a string, got {address!r}", param="ray")
    return address


def _mapping(name: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise ConfigError(f"{name} must hold settings as NAME: VALUE, got {given!r}")
    return given


def _known(name: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    for key in given:
        if key not in known:
            raise ConfigError(f"{name}: unknown setting {key!r}; known are {', '.join(known)}")
