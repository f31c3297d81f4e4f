"""Command-line flags generated from the dataclasses, so that a setting is written down once."""

from __future__ import annotations

import argparse
import dataclasses
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Config = TypeVar("Config")


def add_flags(parser: argparse.ArgumentParser, *configs: type[Any], chosen: Collection[str] = ()) -> None:
    """Add a group of flags for each dataclass: --max-num-seqs for max_num_seqs, --no-x too where x is a bool, or a bool or None.

    A field whose metadata has `flag` False has none: it is set from another. One with `short` has that flag, too.

    Args:
        parser: gets the flags.
        configs: dataclasses made of `setting`s.
        chosen: fields that are None where no flag says otherwise: the door chooses a value then.
    """
    for config in configs:
        group = parser.add_argument_group(config.__name__.removesuffix("Config").lower(), config.__doc__)
        hints = get_type_hints(config)
        taken = flag_names(config)
        for item in dataclasses.fields(config):
            if item.name in taken:
                _add_flag(group, item, hints[item.name], is_chosen=item.name in chosen)


def from_flags(config: type[Config], settings: Mapping[str, Any]) -> Config:
    """A dataclass of what its flags say; a field without one has its default."""
    return config(**{name: settings[name] for name in flag_names(config)})


def flag_names(config: type[Any]) -> list[str]:
    """The fields that have flags."""
    return [item.name for item in dataclasses.fields(config) if item.metadata.get("flag", True)]


def _add_flag(group: argparse._ArgumentGroup, item: dataclasses.Field[Any], hint: Any, *, is_chosen: bool) -> None:
    text = item.metadata["help"]
    if is_chosen:
        text += " (default: chosen for the work and the device)"
    elif item.default is not None and not isinstance(item.default, bool):
        text += f" (default: {item.default})"
    if item.metadata.get("positional"):
        group.add_argument(item.name, nargs="?", default=item.default, help=text)
        return
    flag = "--" + item.name.replace("_", "-")
    if bool in (hint, *get_args(hint)):
        if item.default is not None:
            text += f" (default: {'on' if item.default else 'off'})"
        group.add_argument(flag, action=argparse.BooleanOptionalAction, default=item.default, help=text)
        return
    choices: Sequence[Any] | None = get_args(hint) if get_origin(hint) is Literal else None
    kind = type(choices[0]) if choices else _scalar(hint)
    names = [name for name in (item.metadata.get("short"), flag) if name]
    group.add_argument(*names, dest=item.name, type=kind, default=None if is_chosen else item.default, choices=choices, help=text)


def _scalar(hint: Any) -> type[Any]:
    """The type to parse: int for `int | None`."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    assert isinstance(hint, type)
    return hint
