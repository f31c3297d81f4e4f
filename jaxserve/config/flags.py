"""Command-line flags generated from the dataclasses, so that a setting is written down once."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import re
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from jaxserve.errors import ConfigError
from jaxserve.versions import version_of

Config = TypeVar("Config")

_CHOSEN = "chosen for the work and the device"
_UNKNOWN_FLAG = re.compile(r"unrecognized arguments: (--?[\w-]+)")


class OneLineParser(argparse.ArgumentParser):
    """Takes --version, no abbreviations, and complains as every other mistake is told: a ConfigError, printed in one line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})
        self.add_argument("--version", action="version", version=version_line(), help="print the version and leave")

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError; a flag that is not known comes with the one that is most like it."""
        unknown = _UNKNOWN_FLAG.match(message)
        like = difflib.get_close_matches(unknown[1], self._option_string_actions, 1) if unknown else []
        raise ConfigError(message + (f" (did you mean {like[0]}?)" if like else ""))


def version_line() -> str:
    return f"jaxserve {version_of('jaxserve')}"


class _Once(argparse.Action):
    """Stores what two arguments, a positional and a flag, may give, of which only one does."""

    def __init__(self, seen: set[str], **settings: Any) -> None:
        super().__init__(**settings)
        self._seen = seen

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Any = None) -> None:
        if self.dest in self._seen:
            flag = "--" + self.dest.replace("_", "-")
            parser.error(f"{self.dest} is given twice, as {getattr(namespace, self.dest)!r} and as {values!r}: leave {flag} out")
        self._seen.add(self.dest)
        setattr(namespace, self.dest, values)


def add_flags(
    parser: argparse.ArgumentParser, *configs: type[Any], chosen: Collection[str] = (), chosen_how: str = _CHOSEN
) -> None:
    """Add a group of flags for each dataclass: --max-num-seqs for max_num_seqs, --no-x too where x is a bool, or a bool or None.

    A field whose metadata has `flag` False has none: it is set from another. One with `short` has that flag, too; one with
    `positional` is an argument without a name, and with `named` besides one with its name. A tuple of strings takes several.

    Args:
        parser: gets the flags.
        configs: dataclasses made of `setting`s.
        chosen: fields that are None where no flag says otherwise: the command chooses a value then.
        chosen_how: for the help, how it does.
    """
    for config in configs:
        group = parser.add_argument_group(config.__name__.removesuffix("Config").lower(), config.__doc__)
        hints = get_type_hints(config)
        taken = flag_names(config)
        for item in dataclasses.fields(config):
            if item.name in taken:
                _add_flag(group, item, hints[item.name], chosen_how if item.name in chosen else None)


def from_flags(config: type[Config], settings: Mapping[str, Any]) -> Config:
    """A dataclass of what its flags say; a field without one has its default."""
    return config(**{name: settings[name] for name in flag_names(config)})


def flag_names(config: type[Any]) -> list[str]:
    return [item.name for item in dataclasses.fields(config) if item.metadata.get("flag", True)]


def _add_flag(group: argparse._ArgumentGroup, item: dataclasses.Field[Any], hint: Any, chosen_how: str | None) -> None:
    default = item.default if chosen_how is None else None
    text = item.metadata["help"] + _default_text(item.default, hint, chosen_how)
    flag = "--" + item.name.replace("_", "-")
    if item.metadata.get("positional"):
        _add_positional(group, item, flag, text)
        return
    if bool in (hint, *get_args(hint)):
        group.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, help=text)
        return
    names = [name for name in (item.metadata.get("short"), flag) if name]
    if get_origin(hint) is tuple:
        group.add_argument(*names, dest=item.name, nargs="+", default=default, help=text)
        return
    choices: Sequence[Any] | None = get_args(hint) if get_origin(hint) is Literal else None
    kind = type(choices[0]) if choices else _scalar(hint)
    group.add_argument(*names, dest=item.name, type=kind, default=default, choices=choices, help=text)


def _add_positional(group: argparse._ArgumentGroup, item: dataclasses.Field[Any], flag: str, text: str) -> None:
    name = item.metadata.get("metavar", item.name)
    if not item.metadata.get("named"):
        group.add_argument(item.name, nargs="?", default=item.default, help=text, metavar=name)
        return
    seen: set[str] = set()
    # One default is enough, and argparse writes that of a positional even where the flag was there before.
    group.add_argument(item.name, nargs="?", action=_Once, seen=seen, default=argparse.SUPPRESS, help=text, metavar=name)
    group.add_argument(flag, dest=item.name, action=_Once, seen=seen, default=item.default, help="the same, by name")


def _default_text(default: Any, hint: Any, chosen_how: str | None) -> str:
    if chosen_how is not None:
        return f" (default: {chosen_how})"
    if default is None or default == ():
        return ""
    return f" (default: {('on' if default else 'off') if bool in (hint, *get_args(hint)) else default})"


def _scalar(hint: Any) -> type[Any]:
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    assert isinstance(hint, type)
    return hint
