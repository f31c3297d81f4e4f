"""The command `python -m jaxserve.keys new --tenant NAME [flags]`: a fresh API key, and the lines of it for the file of keys.

`python -m jaxserve.keys seal FILE` seals a file of them: one that is cut off afterwards is refused.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jaxserve.config.check import check_types
from jaxserve.config.fields import setting
from jaxserve.config.flags import OneLineParser, add_flags
from jaxserve.config.keys_file import seal_keys
from jaxserve.config.seals import sealed
from jaxserve.errors import ConfigError, JaxserveError
from jaxserve.standard_streams import after_output
from jaxserve.types import ServiceClass

_EXIT_ERROR = 2
_PREFIX = "jxs-"  # by which people, and scanners for leaked secrets, know what it is
_RANDOM_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKeyConfig:
    """The key. What is left out is not limited."""

    tenant: str | None = setting(None, "whose key it is")
    id: str | None = setting(None, "what usage events call the key; the first digits of its hash by default")
    service_class: str | None = setting(None, "class of its requests: interactive_paid, interactive_free or batch")
    rpm: int | None = setting(None, "requests a minute of the tenant")
    tpm: int | None = setting(None, "tokens a minute of the tenant")
    max_concurrent: int | None = setting(None, "requests of the tenant at the same time")
    daily_tokens: int | None = setting(None, "tokens a day of the tenant, in UTC")
    weight: float | None = setting(None, "the tenant's share of token-work relative to other tenants'")
    admin: bool = setting(False, "the key may do what operators do")

    def __post_init__(self) -> None:
        check_types(self)
        if not self.tenant:
            raise ConfigError("a key needs a --tenant", param="tenant")
        if self.service_class is not None and self.service_class not in list(ServiceClass):
            raise ConfigError(f"service_class must be one of {', '.join(ServiceClass)}", param="service_class")


def main(argv: Sequence[str] | None = None) -> int:
    """Make a key, or seal a file of them. Returns the exit code.

    A new key goes to stderr, once, and its lines to stdout, where `>> keys.toml` takes them.
    """
    try:
        settings = vars(_parser().parse_args(argv))
        if settings.pop("what") == "seal":
            keys = seal_keys(settings["file"])
            sys.stderr.write(f"{settings['file']} is sealed: {len(keys.keys)} keys of {len(keys.limits)} tenants\n")
            return 0
        lines, key = new_key(NewKeyConfig(**settings))
    except JaxserveError as error:
        sys.stderr.write(f"jaxserve: {error.message}\n")
        return _EXIT_ERROR
    sys.stdout.write(lines)
    sys.stderr.write(f"The key, which is stored nowhere:\n{key}\n")
    return 0


def new_key(config: NewKeyConfig) -> tuple[str, str]:
    """The lines for the file of keys, sealed, and the key."""
    key = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    fields: dict[str, Any] = {"sha256": hashlib.sha256(key.encode()).hexdigest(), **asdict(config)}
    fields["class"] = fields.pop("service_class")
    given = {name: value for name, value in fields.items() if value not in (None, False)}
    # JSON's strings, numbers and booleans are TOML's too.
    lines = "\n".join(["[[key]]", *(f"{name} = {json.dumps(value)}" for name, value in given.items()), "", ""])
    return sealed(lines, 1), key


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="python -m jaxserve.keys", description="Make API keys, and seal files of them.")
    commands = parser.add_subparsers(dest="what", required=True, metavar="{new,seal}")
    add_flags(commands.add_parser("new", help="make a key: append what is printed to the file of keys"), NewKeyConfig)
    seal = commands.add_parser("seal", help="seal a file of keys after it was edited")
    seal.add_argument("file", help="the file")
    return parser


if __name__ == "__main__":
    sys.exit(after_output(main()))
