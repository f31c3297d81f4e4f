"""API keys of a command line or of the environment, of which only hashes go on into the server."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from jaxserve.errors import ConfigError

VARIABLE = "JAXSERVE_API_KEY"


def api_key_hashes(given: Sequence[str]) -> tuple[str, ...]:
    """SHA-256 of each key; where none is given, of the one in JAXSERVE_API_KEY, if it is set and not empty.

    Raises ConfigError, without the key, for one that no header can carry.
    """
    name = "api_key" if given else VARIABLE
    keys = given or [key for key in (os.environ.get(VARIABLE),) if key]
    if not all(key.isascii() and key.isprintable() and " " not in key and key for key in keys):
        raise ConfigError(f"{name} must be printable ASCII without spaces, at least one character", param="api_key")
    return tuple(dict.fromkeys(hashlib.sha256(key.encode()).hexdigest() for key in keys))
