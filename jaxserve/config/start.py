"""A server's settings, from its command line and from a file that it names."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import get_type_hints

from jaxserve.config.check import check_types, take_several
from jaxserve.config.fields import EngineConfig, setting
from jaxserve.config.file import as_yaml, read_settings
from jaxserve.config.flags import OneLineParser, add_flags, flag_names, from_flags
from jaxserve.config.server import ServerConfig
from jaxserve.config.vllm_arguments import as_ours
from jaxserve.errors import ConfigError

VARIABLE = "JAXSERVE_API_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """Where settings come from besides flags, whether they are only looked at, and what goes on as hashes."""

    config: str | None = setting(None, "YAML file of settings under the names of flags; a flag wins over it")
    check: bool = setting(False, "print every setting as it would be, or what is wrong with it, and leave")
    api_key: tuple[str, ...] = setting(
        (),
        f"API keys, one tenant's, that may do everything; the machine's users see them among its processes, "
        f"which one in the environment variable {VARIABLE} is not",
    )

    def __post_init__(self) -> None:
        take_several(self, "api_key")
        check_types(self)


@dataclass(frozen=True, slots=True)
class Start:
    """What a server was asked to do.

    Attributes:
        notes: lines about what was asked and changes nothing.
    """

    source: SourceConfig
    engine: EngineConfig
    server: ServerConfig
    notes: tuple[str, ...] = ()

    def as_yaml(self, *, changed_only: bool = False) -> str:
        """The settings as a file that `--config` reads; `changed_only` leaves defaults out."""
        parts = (getattr(self.engine, item.name) for item in fields(self.engine))
        return as_yaml(*parts, self.server, changed_only=changed_only)


def read_start(argv: Sequence[str] | None, prog: str, description: str) -> Start:
    """Settings from flags, else from the file that one of them names, else their defaults.

    Flags of vLLM are taken where this server has what they ask for.

    Raises ConfigError; ends the process where only the help or the version is asked for.
    """
    arguments, notes = as_ours(sys.argv[1:] if argv is None else argv)
    parts = tuple(get_type_hints(EngineConfig).values())
    parser = OneLineParser(prog=prog, description=description)
    add_flags(parser, SourceConfig, *parts, ServerConfig)
    first = OneLineParser(prog=prog, add_help=False)
    first.add_argument("--config")
    path = first.parse_known_args(arguments)[0].config
    from_file = (
        {} if path is None else read_settings(path, [name for part in (*parts, ServerConfig) for name in flag_names(part)])
    )
    # What the namespace holds already stays as the file has it, unconverted.
    settings = vars(parser.parse_args(arguments, argparse.Namespace(**from_file)))
    source = from_flags(SourceConfig, settings)
    server = ServerConfig(
        **{name: settings[name] for name in flag_names(ServerConfig)}, api_key_hashes=api_key_hashes(source.api_key)
    )
    engine = {name: settings[name] for part in parts for name in flag_names(part)}
    return Start(
        replace(source, api_key=()), EngineConfig.from_settings({**engine, "tenant_keys": server.keys}), server, tuple(notes)
    )


def api_key_hashes(given: Sequence[str]) -> tuple[str, ...]:
    """SHA-256 of each key; where none is given, of the one in JAXSERVE_API_KEY, if it is set and not empty.

    Raises ConfigError, without the key, for one that no header can carry.
    """
    name = "api_key" if given else VARIABLE
    keys = given or [key for key in (os.environ.get(VARIABLE),) if key]
    if not all(key.isascii() and key.isprintable() and " " not in key and key for key in keys):
        raise ConfigError(f"{name} must be printable ASCII without spaces, at least one character", param="api_key")
    return tuple(dict.fromkeys(hashlib.sha256(key.encode()).hexdigest() for key in keys))
