"""A server's settings, from its command line and from a file that it names."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import get_type_hints

from jaxserve.config.check import check_types
from jaxserve.config.fields import EngineConfig, ServerConfig, setting
from jaxserve.config.file import as_yaml, read_settings
from jaxserve.config.flags import add_flags, flag_names, from_flags


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """Where settings come from besides flags, and whether they are only looked at."""

    config: str | None = setting(None, "YAML file of settings under the names of flags; a flag wins over it")
    check: bool = setting(False, "print every setting as it would be, or what is wrong with it, and leave")

    def __post_init__(self) -> None:
        check_types(self)


@dataclass(frozen=True, slots=True)
class Start:
    """What a server was asked to do."""

    source: SourceConfig
    engine: EngineConfig
    server: ServerConfig

    def as_yaml(self, *, changed_only: bool = False) -> str:
        """The settings as a file that `--config` reads; `changed_only` leaves defaults out."""
        parts = (getattr(self.engine, item.name) for item in fields(self.engine))
        return as_yaml(*parts, self.server, changed_only=changed_only)


def read_start(argv: Sequence[str] | None, prog: str, description: str) -> Start:
    """Settings from flags, else from the file that one of them names, else their defaults.

    Raises ConfigError; ends the process with a message where flags themselves are wrong, as argparse does.
    """
    parts = tuple(get_type_hints(EngineConfig).values())
    parser = argparse.ArgumentParser(prog=prog, description=description, allow_abbrev=False)
    add_flags(parser, SourceConfig, *parts, ServerConfig)
    first = argparse.ArgumentParser(prog=prog, add_help=False, allow_abbrev=False)
    first.add_argument("--config")
    path = first.parse_known_args(argv)[0].config
    from_file = (
        {} if path is None else read_settings(path, [name for part in (*parts, ServerConfig) for name in flag_names(part)])
    )
    # What the namespace holds already stays as the file has it, unconverted; but the positional is always written.
    if "model" in from_file:
        parser.set_defaults(model=from_file["model"])
    settings = vars(parser.parse_args(argv, argparse.Namespace(**from_file)))
    server = from_flags(ServerConfig, settings)
    engine = {name: settings[name] for part in parts for name in flag_names(part)}
    return Start(from_flags(SourceConfig, settings), EngineConfig.from_settings({**engine, "tenant_keys": server.keys}), server)
