"""Checks a dataclass's values against its annotations, so that a wrong type is named here and not deep in the engine."""

from __future__ import annotations

import types
from dataclasses import fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from jaxserve.errors import ConfigError


def check_types(config: Any) -> None:
    """Raise ConfigError, naming the field and what it takes, unless every value is of its field's type."""
    hints = get_type_hints(type(config))
    for item in fields(config):
        value, hint = getattr(config, item.name), hints[item.name]
        if not _fits(value, hint):
            raise ConfigError(f"{item.name} must be {_describe(hint)}, got {value!r}", param=item.name)


def take_several(config: Any, *names: str) -> None:
    """Make tuples of what fields of several values were given instead: one string, a list, None for nothing.

    For `__post_init__` of a frozen dataclass, before its types are checked.
    """
    for name in names:
        value = getattr(config, name)
        if value is None or isinstance(value, str | list):
            object.__setattr__(config, name, () if value is None else (value,) if isinstance(value, str) else tuple(value))


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if get_origin(hint) is tuple:  # of any length, of one type
        return isinstance(value, tuple) and all(_fits(part, get_args(hint)[0]) for part in value)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_describe(part) for part in get_args(hint))
    if get_origin(hint) is tuple:
        return f"{_describe(get_args(hint)[0])}, or several"
    return {type(None): "None", int: "an integer", float: "a number", str: "a string", bool: "True or False"}[hint]


def require_at_least(name: str, value: float, low: float) -> None:
    """Raise ConfigError naming the field unless value >= low."""
    if not value >= low:  # a NaN is not
        raise ConfigError(f"{name} must be at least {low}, got {value}", param=name)
