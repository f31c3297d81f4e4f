"""Settings of tests with servers and clients: what each of them would make anew is made once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fastapi._compat import v2
from pydantic import TypeAdapter

# Where there is no certificate, for nothing goes to the network: to read certifi's takes every HTTP client that is made 40 ms.
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)
os.environ.pop("SSL_CERT_FILE", None)  # which comes first

_ADAPTERS: dict[tuple[Any, ...], TypeAdapter[Any]] = {}


def _adapter(kind: Any, *, config: Any = None) -> TypeAdapter[Any]:
    """One for each annotation of an application's parameters and bodies: to make all of them takes every application a second."""
    key = (kind.__origin__, repr(kind), repr(kind.__metadata__), repr(config))
    if key not in _ADAPTERS:
        _ADAPTERS[key] = TypeAdapter(kind, config=config)
    return _ADAPTERS[key]


v2.TypeAdapter = _adapter  # type: ignore[assignment, attr-defined]
