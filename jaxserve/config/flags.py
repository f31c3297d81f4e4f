"""Command-line flags generated from the dataclasses, so that a setting is written down once."""

from __future__ import annotations

import argparse
import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Config = TypeVar("Config")


def add_flags(parser: argparse.ArgumentParser, *configs: type[Any]) -> None:
    """Add a group of flags for each dataclass: --max-num-seqs for max_num_seqs, --no-x too where x is a bool.

    A field whose metadata has `flag` False has none: it is set from another.
    """
    for config in configs:
        group = parser.add_argument_group(config.__name__.removesuffix("Config").lower(), config.__doc__)
        hints = get_type_hints(config)
        taken = flag_names(config)
        for item in dataclasses.fields(config):
            if item.name in taken:
                _add_flag(group, item, hints[item.name])


def from_flags(config: type[Config], settings: Mapping[str, Any]) -> Config:
    """A dataclass of what its flags say; a field without one has its default."""
    return config(**{name: settings[name] for name in flag_names(config)})


def flag_names(config: type[Any]) -> list[str]:
    """The fields that have flags."""
    return [item.name for item in dataclasses.fields(config) if item.metadata.get("flag", True)]


def _add_flag(group: argparse._ArgumentGroup, item: dataclasses.Field[Any], hint: Any) -> None:
    text = item.metadata["help"]
    if item.default is not None and not isinstance(item.default, bool):
        text += f" (default: {item.default})"
    if item.metadata.get("positional"):
        group.add_argument(item.name, nargs="?", default=item.default, help=text)
        return
    flag = "--" + item.name.replace("_", "-")
    if hint is bool:
        state = "on" if item.default else "off"
        group.add_argument(flag, action=argparse.BooleanOptionalAction, default=item.default, help=f"{text} (default: {state})")
        return
    choices: Sequence[Any] | None = get_args(hint) if get_origin(hint) is Literal else None
    kind = type(choices[0]) if choices else _scalar(hint)
    group.add_argument(flag, type=kind, default=item.default, choices=choices, help=text)


def _scalar(hint: Any) -> type[Any]:
    """The type to parse: int for `int | None`."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    assert isinstance(hint, type)
    return hint
